package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"gopkg.in/yaml.v3"
)

// Media types of charts in registries (https://helm.sh/docs/topics/registries).
const (
	helmConfig = "application/vnd.cncf.helm.config.v1+json"
	helmChart  = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartLayouted writes a packed chart as the OCI artefact that helm push makes of it:
// Chart.yaml, as JSON, and the file.
func (r *release) chartLayouted(description []byte, packed string) error {
	var fields map[string]any
	if err := yaml.Unmarshal(description, &fields); err != nil {
		return err
	}
	config, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(packed)
	if err != nil {
		return err
	}
	path, err := r.newLayout("konnectivity-chart")
	if err != nil {
		return err
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: make([]v1.Descriptor, 1)}
	if manifest.Config, err = addBlob(path, helmConfig, config); err != nil {
		return err
	}
	if manifest.Layers[0], err = addBlob(path, helmChart, content); err != nil {
		return err
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	described, err := addBlob(path, types.OCIManifestSchema1, text)
	if err != nil {
		return err
	}
	described.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.number()}
	return path.AppendDescriptor(described)
}

func addBlob(path layout.Path, kind types.MediaType, content []byte) (v1.Descriptor, error) {
	sum, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: kind, Digest: sum, Size: size}, path.WriteBlob(sum, io.NopCloser(bytes.NewReader(content)))
}
