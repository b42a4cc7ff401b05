package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"gopkg.in/yaml.v3"
)

// The chart says what Artifact Hub shows of it, and the layout is the artefact that
// helm push makes: its description for a configuration, and the file for a layer.
func TestChart(t *testing.T) {
	r := &release{root: "..", out: t.TempDir(), version: "v1.2.3-rc.1", time: time.Unix(1, 0)}
	noError(t, r.chart())
	packed := must(os.ReadFile(filepath.Join(r.out, "konnectivity-1.2.3-rc.1.tgz")))(t)
	z := must(gzip.NewReader(bytes.NewReader(packed)))(t)
	var chart struct {
		Name, Version, AppVersion string
		Annotations               map[string]string
	}
	files := tarFiles(t, z)
	hasWhatTemplatesRead(t, files)
	description := files["konnectivity/Chart.yaml"]
	noError(t, yaml.Unmarshal([]byte(description), &chart))
	var images []map[string]string
	var changes []string
	for name, to := range map[string]any{"images": &images, "changes": &changes} {
		if err := yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/"+name]), to); err != nil {
			t.Fatalf("%s: %v in %s", name, err, description)
		}
	}
	holds(t, images[0]["image"] == "konnectivity:v1.2.3-rc.1" && chart.Annotations["artifacthub.io/prerelease"] == "true" && len(changes) >= 3,
		"%s", description)
	command(t, "skopeo", "copy", "--quiet", "oci:"+filepath.Join(r.out, "oci", "konnectivity-chart"), "oci:"+t.TempDir()+"/copy:1.2.3")
	for name, want := range r.chartLayout(t) {
		if name == helmChart && !bytes.Equal(want, packed) {
			t.Error("the layer is not the chart")
		}
		if name == helmConfig {
			var config map[string]any
			if err := json.Unmarshal(want, &config); err != nil || config["version"] != "1.2.3-rc.1" || config["name"] != "konnectivity" {
				t.Errorf("the configuration is %s: %v", want, err)
			}
		}
	}
}

// readsManifests is how a template names what it reads of manifests/: a file, or a pattern of some.
var readsManifests = regexp.MustCompile(`"path" (?:\(printf )?"([^"]+)"`)

// hasWhatTemplatesRead checks that the folders from which a chart's templates read are in it.
func hasWhatTemplatesRead(t *testing.T, files map[string]string) {
	t.Helper()
	packed, reads := map[string]bool{}, 0
	for name := range files {
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			packed[folder] = true
		}
	}
	for name, text := range files {
		if !strings.HasPrefix(name, "konnectivity/templates/") {
			continue
		}
		for _, found := range readsManifests.FindAllStringSubmatch(text, -1) {
			if reads++; !packed["konnectivity/manifests/"+path.Dir(found[1])] {
				t.Errorf("%s reads manifests/%s, which is not in the chart", name, found[1])
			}
		}
	}
	holds(t, reads >= 10, "only %d places are known where templates read manifests", reads)
}

// chartLayout is the chart's two blobs, by their media types.
func (r *release) chartLayout(t *testing.T) map[string][]byte {
	t.Helper()
	path := must(layout.FromPath(filepath.Join(r.out, "oci", "konnectivity-chart")))(t)
	index := must(must(path.ImageIndex())(t).IndexManifest())(t)
	read := func(h v1.Hash) []byte {
		blob := must(path.Blob(h))(t)
		defer blob.Close()
		return must(io.ReadAll(blob))(t)
	}
	manifest := must(v1.ParseManifest(bytes.NewReader(read(index.Manifests[0].Digest))))(t)
	blobs := map[string][]byte{string(manifest.Config.MediaType): read(manifest.Config.Digest)}
	for _, layer := range manifest.Layers {
		blobs[string(layer.MediaType)] = read(layer.Digest)
	}
	holds(t, len(blobs) == 2 && blobs[helmConfig] != nil && blobs[helmChart] != nil,
		"the manifest is %v", manifest)
	return blobs
}
