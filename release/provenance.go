package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// resource is a file or an image, with its digests by algorithm.
type resource struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

const (
	payloadType = "application/vnd.in-toto+json"

	// makeRelease is both the buildType and the builder.id of SLSA: this program.
	makeRelease = "urn:konnectivity:make-release:v1"
)

// provenanceFile is the statement's path.
func (r *release) provenanceFile() string { return r.file("provenance.json") }

// provenance writes an in-toto statement, version 1, about a SLSA provenance, version 1: which
// files and images were made, of which commit, and how (https://slsa.dev/spec/v1.0/provenance).
// It leaves out when the build ran and under which number: the same sources give the same bytes.
func (r *release) provenance() error {
	subjects, err := r.subjects()
	if err != nil {
		return err
	}
	parameters := map[string]string{"version": r.version, "systems": systemNames(r.systems), "tags": r.tags, "ldflags": r.ldflags}
	for name, given := range map[string]string{"fips": r.fips, "downloads": r.downloads} {
		if given != "" {
			parameters[name] = given
		}
	}
	sources := []resource{{"konnectivity", map[string]string{"gitCommit": r.commit}}}
	for _, s := range r.systems {
		if shell := r.shells[s]; shell != nil {
			sources = append(sources, resource{shell.component().PackageURL, map[string]string{"sha256": shell.sum}})
		}
	}
	type object = map[string]any
	text, err := json.MarshalIndent(object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType": makeRelease, "externalParameters": parameters,
				"internalParameters": object{"go": runtime.Version()}, "resolvedDependencies": sources,
			},
			"runDetails": object{"builder": object{"id": makeRelease}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.provenanceFile(), append(text, '\n'), 0o644)
}

func systemNames(systems []system) string {
	var names []string
	for _, s := range systems {
		names = append(names, s.os+"/"+s.arch)
	}
	return strings.Join(names, " ")
}

// made returns the files that there are, with the digest of each.
func (r *release) made() (all []resource, err error) {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		sum, err := sumOf(filepath.Join(r.out, f.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, resource{f.Name(), map[string]string{"sha256": sum}})
	}
	return all, nil
}

// subjects returns the release's files with the digest of each, and the images in its OCI
// layouts with the digests under which registries list them.
func (r *release) subjects() ([]resource, error) {
	all, err := r.made()
	if err != nil {
		return nil, err
	}
	layouts, err := filepath.Glob(filepath.Join(r.out, "oci", "*"))
	if err != nil {
		return nil, err
	}
	for _, folder := range layouts {
		index, err := layout.ImageIndexFromPath(folder)
		if err != nil {
			return nil, err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return nil, err
		}
		for _, d := range manifest.Manifests {
			all = append(all, resource{"oci/" + filepath.Base(folder), map[string]string{d.Digest.Algorithm: d.Digest.Hex}})
		}
	}
	return all, nil
}
