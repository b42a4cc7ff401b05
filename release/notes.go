package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// notes writes the release notes.
func (r *release) notes() error {
	changes, err := r.changes()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "RELEASE_NOTES.md"), fmt.Appendf(nil,
		"# konnectivity %s\n\n%s\n\nCommit %s, built with %s. SHA256SUMS has the checksums; docs/install.md says how to install what is here.\n\n%s",
		r.version, changes, r.commit, runtime.Version(), r.foreign()), 0o644)
}

// changes is the changelog's section of this version, or the section of unreleased
// changes.
func (r *release) changes() (string, error) {
	changelog, err := r.source("CHANGELOG.md")
	if err != nil {
		return "", err
	}
	for _, title := range []string{r.number(), "Unreleased"} {
		if changes := section(string(changelog), title); changes != "" {
			return changes, nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has neither a section %q nor \"Unreleased\"", r.number())
}

// foreign says which files of images are not ours.
func (r *release) foreign() string {
	text := fmt.Sprintf("Images hold the public CAs of %s, and HyperShift's also a shell where Debian has it:\n\n", authority())
	for _, s := range r.systems {
		if shell := r.shells[s]; shell != nil {
			text += "- " + shell.origin() + "\n"
		}
	}
	return text
}

// section is what stands under the heading that begins with title, with or
// without v and brackets.
func section(changelog, title string) string {
	var lines []string
	within := false
	for line := range strings.Lines(changelog) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			first, _, _ := strings.Cut(strings.TrimSpace(heading), " ")
			within = strings.TrimPrefix(strings.Trim(first, "[]"), "v") == title
			continue
		}
		if within {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// checksumsName is the file's that names the sums of all others.
const checksumsName = "SHA256SUMS"

// checksums covers every file but the layouts, whose files are named by theirs.
func (r *release) checksums() error {
	made, err := r.made()
	if err != nil {
		return err
	}
	var text []byte
	for _, f := range made {
		text = fmt.Appendf(text, "%s  %s\n", f.Digest["sha256"], f.Name)
	}
	return os.WriteFile(filepath.Join(r.out, checksumsName), text, 0o644)
}
