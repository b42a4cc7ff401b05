// Command release makes all files of a release from the sources beside it and the Go
// module cache: archives, packages, container images, Helm's chart, a bill of
// materials, a provenance, checksums, and with a key signatures. The same sources give the same bytes.
//
// The formats are other modules' work: nfpm makes .deb and .rpm, go-containerregistry
// images, cyclonedx-go the bill. GoReleaser joins such parts too, but it works on a tag
// of a git repository, and has docker make images or pushes them to a registry. Here a
// release is files, of any version, commit and time that the command is given.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	"golang.org/x/sync/errgroup"
)

// release has the settings of one run.
type release struct {
	root      string // of the sources
	out       string
	version   string // v1.2.3
	commit    string
	time      time.Time // of the commit: every file's
	ldflags   string
	tags      string
	systems   []system
	shells    map[system]*shell // for HyperShift's image, where Debian has one
	key       *key              // nil: nothing is signed
	fips      string            // version of Go's FIPS 140-3 module that programs use; "": none
	downloads string            // address of the published files; "": unknown
	vulndb    string            // folder or address of a database of vulnerabilities; "": no OpenVEX
	files     string            // make only this tar of the lean image's files; "": a release

	work string // temporary
}

// system is what programs are built for.
type system struct{ os, arch string }

func (s system) String() string { return s.os + "_" + s.arch }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run() error {
	r, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "konnectivity-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if r.files != "" {
		return inTurn([][]step{{{"programs", r.build}}, {{"licences", r.licences}}, {{"files of the image", r.imageFiles}}})
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	return inTurn([][]step{
		{{"programs", r.build}},
		{{"man pages and completions", r.document}, {"licences", r.licences}},
		{{"archives", r.archives}, {"packages", r.packages}, {"images", r.images}, {"chart", r.chart},
			{"bill of materials", r.materials}, {"vulnerabilities", r.vulnerabilities}, {"notes", r.notes}},
		{{"manifest for krew", r.krew}},
		{{"provenance", r.provenance}},
		{{"checksums", r.checksums}},
		{{"signatures", r.sign}},
	})
}

// inTurn takes steps that need those before them.
func inTurn(all [][]step) error {
	for _, steps := range all {
		if err := together(steps); err != nil {
			return err
		}
	}
	return nil
}

// step is a part of making a release.
type step struct {
	name string
	do   func() error
}

// together takes steps that do not need each other.
func together(steps []step) error {
	var group errgroup.Group
	for _, s := range steps {
		group.Go(func() error {
			start := time.Now()
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			fmt.Printf("%-26s %5.1f s\n", s.name, time.Since(start).Seconds())
			return nil
		})
	}
	return group.Wait()
}

func parse(args []string) (*release, error) {
	r := &release{}
	var seconds int64
	var systems, busybox, keyFile string
	set := flag.NewFlagSet("release", flag.ExitOnError)
	set.StringVar(&r.root, "root", "..", "folder of the sources")
	set.StringVar(&r.out, "out", "../dist", "folder to write to; what is in it is deleted")
	set.StringVar(&r.version, "version", "", "semantic version, as v1.2.3")
	set.StringVar(&r.commit, "commit", "", "commit of the sources")
	set.Int64Var(&seconds, "time", 0, "time of the commit, in seconds since 1970")
	set.StringVar(&r.ldflags, "ldflags", "", "flags for the linker")
	set.StringVar(&r.tags, "tags", "", "build tags")
	set.StringVar(&systems, "systems", "", "OS/ARCH to build for, spaces between")
	set.StringVar(&r.files, "image-files", "", "make nothing but a tar of what the lean image holds, for one system and whatever version")
	set.StringVar(&busybox, "busybox", "", "folder with ARCH/busybox, ARCH/copyright and ARCH/package for HyperShift's image")
	set.StringVar(&r.fips, "fips", "", "version of Go's FIPS 140-3 module (GOFIPS140), whose mode the programs are in; \"\": none")
	set.StringVar(&r.downloads, "downloads", "", "address from which the files will be downloaded, for krew; \"\": no manifest is made")
	set.StringVar(&r.vulndb, "vulndb", "", "folder or address of a database of Go's vulnerabilities, for an OpenVEX document; \"\": none is made")
	set.StringVar(&keyFile, "key", "", "PEM file with the private key to sign with; \"\": nothing is signed")
	_ = set.Parse(args) // which ends the process itself
	if r.files == "" && (!semver.IsValid(r.version) || semver.Canonical(r.version) != r.version || pastTag.MatchString(r.version)) {
		return nil, fmt.Errorf("%q is no version to release: give VERSION=v1.2.3", r.version)
	}
	for _, s := range strings.Fields(systems) {
		goos, arch, ok := strings.Cut(s, "/")
		if !ok {
			return nil, fmt.Errorf("-systems: %q is not OS/ARCH", s)
		}
		r.systems = append(r.systems, system{goos, arch})
	}
	if len(r.systems) == 0 || r.commit == "" || seconds == 0 {
		return nil, fmt.Errorf("-systems, -commit and -time must be given; make release does")
	}
	r.time = time.Unix(seconds, 0).UTC()
	var err error
	for _, path := range []*string{&r.root, &r.out, &busybox, &r.files, &keyFile} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, err
		}
	}
	if keyFile != "" {
		if r.key, err = readKey(keyFile); err != nil {
			return nil, err
		}
	}
	r.shells, err = shellsIn(busybox, r.systems)
	return r, err
}

// pastTag is what git describe calls a commit without a tag. As a version it would be older than
// the tag, which the commit is not.
var pastTag = regexp.MustCompile(`-[0-9]+-g[0-9a-f]+$`)

// number is the version without its v, as file names and packages have it.
func (r *release) number() string { return strings.TrimPrefix(r.version, "v") }

// file is the path of an artefact.
func (r *release) file(parts ...string) string {
	return filepath.Join(r.out, "konnectivity_"+r.number()+"_"+strings.Join(parts, ""))
}

// source reads a file of the sources.
func (r *release) source(path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(r.root, path))
}
