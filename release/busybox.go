package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// shell is Debian's busybox-static for an architecture, unchanged.
type shell struct {
	arch, folder string
	version      string
	sources      string // Debian's packages that it is built from
	sum          string // of the program
}

// shellsIn reads the shells in a folder, each in one of its architecture, for the systems of Linux
// that Debian has.
func shellsIn(folder string, systems []system) (map[system]*shell, error) {
	all := map[system]*shell{}
	for _, s := range systems {
		sh := &shell{arch: s.arch, folder: filepath.Join(folder, s.arch)}
		text, err := os.ReadFile(filepath.Join(sh.folder, "package"))
		if os.IsNotExist(err) || s.os != "linux" {
			continue
		}
		if err == nil {
			sh.sum, err = sumOf(filepath.Join(sh.folder, "busybox"))
		}
		if err != nil {
			return nil, err
		}
		var ok bool
		if sh.version, sh.sources, ok = strings.Cut(strings.TrimSpace(string(text)), "\n"); !ok {
			return nil, fmt.Errorf("%s/package does not tell version and sources", sh.folder)
		}
		all[s] = sh
	}
	return all, nil
}

// debianSources is where Debian keeps every source that it has ever had.
const debianSources = "https://snapshot.debian.org/package/busybox/"

// origin says what it is and where its source is, as its licence asks for.
func (s *shell) origin() string {
	return fmt.Sprintf("busybox-static %s of Debian, %s, unchanged. GPL-2; source: %s, at %s", s.version, s.arch, s.sources, debianSources)
}

// entries are what an image has of it: sh and sleep.
func (s *shell) entries() []entry {
	const docs = "usr/share/doc/busybox-static/"
	return []entry{
		{name: "bin/busybox", mode: 0o755, source: filepath.Join(s.folder, "busybox")},
		{name: "bin/sh", mode: 0o777, link: "busybox"},
		{name: "bin/sleep", mode: 0o777, link: "busybox"},
		{name: docs + "copyright", mode: 0o644, source: filepath.Join(s.folder, "copyright")},
		{name: docs + "source", mode: 0o644, text: []byte(s.origin() + "\n")},
	}
}

func (s *shell) component() cdx.Component {
	purl := fmt.Sprintf("pkg:deb/debian/busybox-static@%s?arch=%s", strings.NewReplacer(":", "%3A", "+", "%2B").Replace(s.version), s.arch)
	return cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeApplication, Name: "busybox-static", Version: s.version, PackageURL: purl, Scope: cdx.ScopeRequired,
		Description:        s.origin(),
		Licenses:           &cdx.Licenses{{License: &cdx.License{ID: "GPL-2.0-only"}}},
		ExternalReferences: &[]cdx.ExternalReference{{Type: cdx.ERTypeSourceDistribution, URL: debianSources}},
	}
}
