package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive, a package or an image: its content is either
// on disk or here.
type entry struct {
	name   string
	mode   int64
	source string
	text   []byte
	link   string // a symbolic link's target
}

func (e entry) content() ([]byte, error) {
	if e.source == "" {
		return e.text, nil
	}
	return os.ReadFile(e.source)
}

// archives makes one for every system: programs, documentation, manifests, and
// for Linux what a package installs.
func (r *release) archives() error {
	for _, s := range r.systems {
		entries, err := r.archived(s)
		if err != nil {
			return err
		}
		write := writeTarGz
		if s.os == "windows" {
			write = writeZip
		}
		if err := writeFile(r.archive(s), func(w io.Writer) error { return write(w, entries, r.time) }); err != nil {
			return err
		}
	}
	return nil
}

// archive is the path of a system's.
func (r *release) archive(s system) string {
	if s.os == "windows" {
		return r.file(s.String(), ".zip")
	}
	return r.file(s.String(), ".tar.gz")
}

// folder is the one at the top of a system's archive.
func (r *release) folder(s system) string { return "konnectivity_" + r.number() + "_" + s.String() }

func (r *release) archived(s system) ([]entry, error) {
	top := r.folder(s) + "/"
	var entries []entry
	for _, p := range programs {
		file := r.binary(s, p.name)
		entries = append(entries, entry{name: top + filepath.Base(file), mode: 0o755, source: file})
	}
	entries = append(entries, r.legal(top)...)
	for _, pattern := range []string{"README.md", "CHANGELOG.md", "docs/*.md", "docs/*.json", "docs/images/*"} {
		files, err := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			entries = append(entries, entry{name: top + path.Join(path.Dir(pattern), filepath.Base(file)), mode: 0o644, source: file})
		}
	}
	manifests, err := tree(filepath.Join(r.root, "manifests"), top+"manifests", func(path string) bool {
		return !strings.HasPrefix(path, "check/") && !strings.HasSuffix(path, "_test.yaml")
	})
	if err != nil {
		return nil, err
	}
	entries = append(entries, manifests...)
	for _, kind := range []string{"man", "completions"} {
		files, err := tree(r.docs(kind), top+kind, nil)
		if err != nil {
			return nil, err
		}
		entries = append(entries, files...)
	}
	if s.os == "windows" {
		entries = append(entries, windows(top)...)
	}
	if s.os == "darwin" {
		entries = append(entries, entry{name: top + "macos/konnectivity-agent.plist", mode: 0o644, text: launchd})
	}
	if s.os != "linux" {
		return entries, nil
	}
	for _, p := range programs {
		for _, e := range p.system() {
			e.name = top + "linux" + e.name
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// writeTar writes entries in the order of their names, and their folders, as
// owned by root and of one age.
func writeTar(w io.Writer, entries []entry, age time.Time) error {
	t := tar.NewWriter(w)
	folders := map[string]bool{".": true, "/": true}
	for _, e := range sorted(entries) {
		if err := addFolders(t, path.Dir(e.name), folders, age); err != nil {
			return err
		}
		content, err := e.content()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(content)), ModTime: age, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.link, 0
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return t.Close()
}

func addFolders(t *tar.Writer, folder string, done map[string]bool, age time.Time) error {
	if done[folder] {
		return nil
	}
	done[folder] = true
	if err := addFolders(t, path.Dir(folder), done, age); err != nil {
		return err
	}
	mode := int64(0o755)
	if path.Base(folder) == "tmp" {
		mode = 0o1777
	}
	return t.WriteHeader(&tar.Header{Name: folder + "/", Mode: mode, ModTime: age, Format: tar.FormatPAX, Typeflag: tar.TypeDir})
}

func writeTarGz(w io.Writer, entries []entry, age time.Time) error {
	z := gzip.NewWriter(w)
	if err := writeTar(z, entries, age); err != nil {
		return err
	}
	return z.Close()
}

func writeZip(w io.Writer, entries []entry, age time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range sorted(entries) {
		content, err := e.content()
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: age}
		h.SetMode(os.FileMode(e.mode))
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(content); err != nil {
			return err
		}
	}
	return z.Close()
}

func sorted(entries []entry) []entry {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return entries
}

// writeFile has write fill a new file.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return f.Close()
}
