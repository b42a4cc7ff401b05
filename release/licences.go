package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// thirdParty is the name of the file with the licences of everything that is
// linked into the programs, and of the public CAs.
const thirdParty = "THIRD_PARTY_LICENSES"

// authorities is the module that the public CAs are from.
const authorities = "golang.org/x/crypto/x509roots/fallback"

// licensing is the names of files that a distribution must keep.
var licensing = regexp.MustCompile(`(?i)^(licen[cs]es?|notices?|copying|copyright|patents)([.-].*)?$`)

// legal is the licences, as files of a folder.
func (r *release) legal(folder string) []entry {
	return []entry{
		{name: folder + "LICENSE", mode: 0o644, source: filepath.Join(r.root, "LICENSE")},
		{name: folder + thirdParty, mode: 0o644, source: filepath.Join(r.work, thirdParty)},
	}
}

// licences collects them, for all systems together: Go's own, and those of every
// module that the compiler has written into a program, out of the module cache.
func (r *release) licences() error {
	needed := map[module.Version]bool{}
	for _, s := range r.systems {
		files, err := filepath.Glob(filepath.Join(r.bin(s), "*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			info, err := buildinfo.ReadFile(file)
			if err != nil {
				return err
			}
			for _, m := range linked(info) {
				needed[m] = true
			}
		}
	}
	needed[authority()] = true
	text, err := collect(needed)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.work, thirdParty), text, 0o644)
}

// linked is the modules of others that a program consists of.
func linked(info *debug.BuildInfo) (modules []module.Version) {
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Sum != "" { // without one it is of these sources
			modules = append(modules, module.Version{Path: m.Path, Version: m.Version})
		}
	}
	return modules
}

// authority is the module of the public CAs, in the version that this program is made of.
func authority() module.Version {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range linked(info) {
			if m.Path == authorities {
				return m
			}
		}
	}
	panic("this program was built without modules")
}

// collect is the text of all files about licences, each text once, under the
// names of what it is for.
func collect(needed map[module.Version]bool) ([]byte, error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	goroot, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	owners := map[string][]string{} // by text
	for _, name := range []string{"LICENSE", "PATENTS"} {
		if err := note(owners, "Go's standard library: "+name, filepath.Join(goroot, name)); err != nil {
			return nil, err
		}
	}
	for m := range needed {
		if err := noteModule(owners, m, cache); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
	}
	return printed(owners), nil
}

// noteModule finds a module's files, those of what it has copied included.
func noteModule(owners map[string][]string, m module.Version, cache string) error {
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return err
	}
	folder := filepath.Join(cache, filepath.FromSlash(path)+"@"+version)
	found := false
	err = filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !licensing.MatchString(d.Name()) || filepath.Ext(file) == ".go" {
			return err
		}
		found = true
		relative, err := filepath.Rel(folder, file)
		return errors.Join(err, note(owners, m.String()+": "+filepath.ToSlash(relative), file))
	})
	if err == nil && !found {
		err = errors.New("has no licence")
	}
	return err
}

func note(owners map[string][]string, owner, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
	owners[key] = append(owners[key], owner)
	return nil
}

// printed returns the texts, sorted by the modules that they are for.
func printed(owners map[string][]string) []byte {
	var texts []string
	for text, names := range owners {
		slices.Sort(names)
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int { return strings.Compare(owners[a][0], owners[b][0]) })
	var all bytes.Buffer
	all.WriteString("What others have written of these programs, and its licences.\n")
	for _, text := range texts {
		fmt.Fprintf(&all, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(owners[text], "\n"), text)
	}
	return all.Bytes()
}
