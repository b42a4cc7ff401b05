package main

import (
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// images makes the lean image, the agent's and HyperShift's, each for every
// architecture of Linux that there is, as an OCI layout and the same in one file.
func (r *release) images() error {
	const tool = "/usr/bin/konnectivity"
	base, suite := r.layers(r.lean), r.layers(r.suite)
	return errors.Join(
		r.image("konnectivity", "All programs of the konnectivity suite, and nothing else", tool, base, suite),
		r.image("konnectivity-agent", "The konnectivity agent, started as upstream's image starts its own", "/proxy-agent", base, r.layers(r.agent)),
		r.image("konnectivity-hypershift", "The konnectivity suite under the names that HyperShift starts", tool, base, suite, r.layers(r.hypershift)))
}

// imageFiles is what the lean image holds, for who builds it by a Dockerfile.
func (r *release) imageFiles() error {
	if len(r.systems) != 1 || r.systems[0].os != "linux" {
		return fmt.Errorf("an image is for one architecture of Linux, not for %v", r.systems)
	}
	var entries []entry
	for _, of := range []func(system) ([]entry, error){r.lean, r.suite} {
		more, err := of(r.systems[0])
		if err != nil {
			return err
		}
		entries = append(entries, more...)
	}
	return writeFile(r.files, func(w io.Writer) error { return writeTar(w, entries, r.time) })
}

// layers makes a layer for each architecture, once, however many images it is
// in. It is nil where there is nothing for that architecture.
func (r *release) layers(entries func(system) ([]entry, error)) func(system) (v1.Layer, error) {
	made := map[system]v1.Layer{}
	return func(s system) (v1.Layer, error) {
		if layer := made[s]; layer != nil {
			return layer, nil
		}
		content, err := entries(s)
		if err != nil || content == nil {
			return nil, err
		}
		layer, err := r.layer(content)
		made[s] = layer
		return layer, err
	}
}

// variants tells apart what runtimes would take for one architecture. Those that
// leave it out mean the same as these.
var variants = map[string]string{"arm": "v7"}

// image makes one image of layers; architectures that one of them has nothing
// for are left out.
func (r *release) image(name, title, entrypoint string, layers ...func(system) (v1.Layer, error)) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	count := 0
	for _, s := range r.systems {
		if s.os != "linux" {
			continue
		}
		image, err := r.imageOf(s, title, entrypoint, layers)
		if err != nil {
			return err
		}
		if image == nil {
			continue
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: s.os, Architecture: s.arch, Variant: variants[s.arch]}},
		})
		count++
	}
	if count == 0 { // a layout cannot be empty
		return nil
	}
	written, err := r.newLayout(name)
	if err != nil {
		return err
	}
	// The first is what podman and skopeo read, the second containerd's: the name
	// that kubelet asks for where a pod says NAME:VERSION.
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": name + ":" + r.version,
		"io.containerd.image.name":          "docker.io/library/" + name + ":" + r.version,
	})); err != nil {
		return err
	}
	return r.imageArchive(name, string(written))
}

// newLayout makes an OCI layout that has nothing in it yet.
func (r *release) newLayout(name string) (layout.Path, error) {
	folder := filepath.Join(r.out, "oci", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	return layout.Write(folder, empty.Index)
}

func (r *release) imageOf(s system, title, entrypoint string, layers []func(system) (v1.Layer, error)) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := &v1.ConfigFile{
		Architecture: s.arch, Variant: variants[s.arch], OS: s.os, Created: v1.Time{Time: r.time},
		Config: v1.Config{
			User: "65532:65532", Env: []string{"PATH=/usr/bin:/bin"}, Entrypoint: []string{entrypoint},
			Labels: map[string]string{
				"org.opencontainers.image.title":    title,
				"org.opencontainers.image.version":  r.version,
				"org.opencontainers.image.revision": r.commit,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	}
	image, err := mutate.ConfigFile(image, config)
	if err != nil {
		return nil, err
	}
	for _, of := range layers {
		layer, err := of(s)
		if err != nil || layer == nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "make release"}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history}); err != nil {
			return nil, err
		}
	}
	return image, nil
}

func (r *release) layer(entries []entry) (v1.Layer, error) {
	var content bytes.Buffer
	if err := writeTar(&content, entries, r.time); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// lean returns the files that the programs expect of a system: the public CAs, which
// verify customers' proxies and clouds, and a name for their user.
func (r *release) lean(system) ([]entry, error) {
	var cas bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // trusted only for certificates of some time, which a file cannot say
		}
		if err := pem.Encode(&cas, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return []entry{
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: cas.Bytes()},
		{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/:/bin/false\nkonnectivity:x:65532:65532:konnectivity:/:/bin/false\n")},
		{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\nkonnectivity:x:65532:\n")},
	}, nil
}

// suite is the programs, and links for manifests written for upstream's images.
func (r *release) suite(s system) ([]entry, error) {
	entries := append(r.legal("usr/share/doc/konnectivity/"),
		entry{name: "proxy-server", mode: 0o777, link: "usr/bin/konnectivity-server"},
		entry{name: "proxy-agent", mode: 0o777, link: "usr/bin/konnectivity-agent"},
	)
	for _, p := range programs {
		entries = append(entries, entry{name: "usr/bin/" + p.name, mode: 0o755, source: r.binary(s, p.name)})
	}
	return entries, nil
}

// agent is the agent alone, for pods that name no command: k0s' agents, for example.
func (r *release) agent(s system) ([]entry, error) {
	const program = "konnectivity-agent"
	return append(r.legal("usr/share/doc/konnectivity/"),
		entry{name: "proxy-agent", mode: 0o777, link: "usr/bin/" + program},
		entry{name: "usr/bin/" + program, mode: 0o755, source: r.binary(s, program)}), nil
}

// hypershift is what its pods start, and a shell for their preStop hooks: Debian's
// busybox, where Debian has the architecture.
func (r *release) hypershift(s system) ([]entry, error) {
	shell := r.shells[s]
	if shell == nil {
		fmt.Println("no busybox for", s, "and so no image for HyperShift")
		return nil, nil
	}
	return append(shell.entries(),
		entry{name: "usr/bin/control-plane-operator", mode: 0o755, source: r.binary(s, "hypershift")},
		entry{name: "usr/bin/proxy-server", mode: 0o777, link: "control-plane-operator"},
		entry{name: "usr/bin/proxy-agent", mode: 0o777, link: "control-plane-operator"},
	), nil
}

// imageArchive is the layout in one file, which ctr, podman and skopeo read.
func (r *release) imageArchive(name, folder string) error {
	entries, err := tree(folder, "", nil)
	if err != nil {
		return err
	}
	file := filepath.Join(r.out, name+"_"+r.number()+"_oci.tar")
	return writeFile(file, func(w io.Writer) error { return writeTar(w, entries, r.time) })
}
