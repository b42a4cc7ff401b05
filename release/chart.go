package main

import (
	"bytes"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
	"gopkg.in/yaml.v3"
)

// chartManifests are the folders of manifests/ that the chart's templates read.
// In the sources a link leads there.
var chartManifests = []string{
	"server/hosted", "server/hosted-route", "server/hosted-tls-route", "server/components/peers",
	"shared/server", "shared/components/secrets", "shared/tenant",
	"agent", "signer", "pki/cert-manager", "monitoring",
}

// chart packs Helm's chart, as `helm package` does, with this release's version
// and image.
func (r *release) chart() error {
	source := filepath.Join(r.root, "charts/konnectivity")
	entries, err := tree(source, "konnectivity", ofChart)
	if err != nil {
		return err
	}
	for _, folder := range chartManifests {
		more, err := tree(filepath.Join(r.root, "manifests", folder), "konnectivity/manifests/"+folder, ofChart)
		if err != nil {
			return err
		}
		entries = append(entries, more...)
	}
	entries = append(entries, entry{name: "konnectivity/LICENSE", mode: 0o644, source: filepath.Join(r.root, "LICENSE")})
	i := slices.IndexFunc(entries, func(e entry) bool { return e.name == "konnectivity/Chart.yaml" })
	text, err := entries[i].content()
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte("\nversion: 0.0.0\n"), []byte("\nversion: "+r.number()+"\n"), 1)
	text = bytes.Replace(text, []byte("\nappVersion: latest\n"), []byte("\nappVersion: "+r.version+"\n"), 1)
	if text, err = r.forArtifactHub(text); err != nil {
		return err
	}
	entries[i].source, entries[i].text = "", text
	packed := filepath.Join(r.out, "konnectivity-"+r.number()+".tgz")
	if err := writeFile(packed, func(w io.Writer) error { return writeTarGz(w, entries, r.time) }); err != nil {
		return err
	}
	return r.chartLayouted(text, packed)
}

// forArtifactHub completes the annotations, which end Chart.yaml, by this version's image
// and changes.
func (r *release) forArtifactHub(text []byte) ([]byte, error) {
	text = bytes.Replace(text, []byte("image: konnectivity:latest\n"), []byte("image: konnectivity:"+r.version+"\n"), 1)
	changes, err := r.changes()
	if err != nil {
		return nil, err
	}
	list, err := yaml.Marshal(points(changes))
	if err != nil {
		return nil, err
	}
	rest, err := yaml.Marshal(map[string]string{
		"artifacthub.io/changes":    string(list),
		"artifacthub.io/prerelease": strconv.FormatBool(semver.Prerelease(r.version) != ""),
	})
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(rest) {
		text = append(append(text, "  "...), line...)
	}
	return text, nil
}

// points are the entries of a list in Markdown, each in one line.
func points(text string) (all []string) {
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "- "):
			all = append(all, strings.TrimSpace(line[2:]))
		case strings.HasPrefix(line, "  ") && len(all) > 0:
			all[len(all)-1] += " " + strings.TrimSpace(line)
		}
	}
	return all
}

// ofChart leaves out documents and tests.
func ofChart(path string) bool {
	return !strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, "_test.yaml")
}

// tree is those files under a folder that are wanted, by their path in it; nil: all.
func tree(folder, name string, wanted func(path string) bool) (entries []entry, err error) {
	err = filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(folder, file)
		if relative = filepath.ToSlash(relative); err == nil && (wanted == nil || wanted(relative)) {
			entries = append(entries, entry{name: path.Join(name, relative), mode: 0o644, source: file})
		}
		return err
	})
	return entries, err
}
