package main

import (
	"io"
	"path/filepath"
	"strings"
	"text/template"
)

// krew writes the manifest with which krew installs the kubectl plugin from the archives. It
// does nothing unless the address is known from which these are downloaded.
func (r *release) krew() error {
	if r.downloads == "" {
		return nil
	}
	type platform struct{ OS, Arch, URI, Sum, Bin, Folder string }
	var all []platform
	for _, s := range r.systems {
		archive := r.archive(s)
		sum, err := sumOf(archive)
		if err != nil {
			return err
		}
		all = append(all, platform{s.os, s.arch, strings.TrimSuffix(r.downloads, "/") + "/" + filepath.Base(archive), sum, filepath.Base(r.binary(s, programs[0].name)), r.folder(s)})
	}
	t := template.Must(template.ParseFS(templates, "files/krew.yaml"))
	return writeFile(r.file("krew.yaml"), func(w io.Writer) error {
		return t.Execute(w, map[string]any{"Version": r.version, "Platforms": all})
	})
}
