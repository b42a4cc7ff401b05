package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// statement is an in-toto statement, version 1, about a SLSA provenance, version 1: which
// files were made, of which commit, and how (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance leaves out when the build ran and under which number: the same sources give
// the same bytes.
type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

const (
	payloadType   = "application/vnd.in-toto+json"
	predicateType = "https://slsa.dev/provenance/v1"

	// makeRelease is both the buildType and the builder.id of SLSA: this program.
	makeRelease = "urn:konnectivity:make-release:v1"
)

// provenanceFile is the statement's path.
func (r *release) provenanceFile() string { return r.file("provenance.json") }

// provenance writes the statement about all files that are there, and all images.
func (r *release) provenance() error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType}
	var err error
	if s.Subject, err = r.subjects(); err != nil {
		return err
	}
	build := &s.Predicate.BuildDefinition
	build.BuildType, s.Predicate.RunDetails.Builder.ID = makeRelease, makeRelease
	build.ExternalParameters = map[string]string{"version": r.version, "systems": r.systemNames(), "tags": r.tags, "ldflags": r.ldflags}
	for name, given := range map[string]string{"fips": r.fips, "downloads": r.downloads} {
		if given != "" {
			build.ExternalParameters[name] = given
		}
	}
	build.InternalParameters = map[string]string{"go": runtime.Version()}
	build.ResolvedDependencies = []resource{{Name: "konnectivity", Digest: map[string]string{"gitCommit": r.commit}}}
	for _, system := range r.systems {
		shell, err := r.shellOf(system)
		if err != nil {
			return err
		}
		if shell == nil {
			continue
		}
		sum, err := sumOf(filepath.Join(shell.folder, "busybox"))
		if err != nil {
			return err
		}
		build.ResolvedDependencies = append(build.ResolvedDependencies, resource{shell.component().PackageURL, map[string]string{"sha256": sum}})
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.provenanceFile(), append(text, '\n'), 0o644)
}

func (r *release) systemNames() string {
	var names []string
	for _, s := range r.systems {
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
