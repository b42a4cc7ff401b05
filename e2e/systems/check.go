// Package systems type-checks the module and its tests for every system it is
// built for. It reads everything, dependencies included, from source, and of
// dependencies declarations only: the compiler would find the same in a hundred
// times the time.
package systems

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// listed is what go list says of a package; see go help list.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// Check type-checks all packages of the module in dir, and their tests, as they
// are on system, which is GOOS/GOARCH.
func Check(dir, system string) error {
	goos, goarch, _ := strings.Cut(system, "/")
	packages, err := list(dir, goos, goarch)
	if err != nil {
		return err
	}
	c := &checker{files: token.NewFileSet(), sizes: types.SizesFor("gc", goarch), results: map[string]*result{"unsafe": {types: types.Unsafe}}}
	return c.all(packages)
}

// list returns them behind what they import.
func list(dir, goos, goarch string) (packages []listed, err error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error", "./...")
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		case p.Error != nil:
			return nil, fmt.Errorf("go list: %s: %s", p.ImportPath, p.Error.Err)
		case p.ImportPath != "unsafe" && !strings.HasSuffix(p.ImportPath, ".test"): // that is a generated main
			packages = append(packages, p)
		}
	}
}

type checker struct {
	files   *token.FileSet
	sizes   types.Sizes
	results map[string]*result // by import path as listed; complete before anyone reads it
}

// result is a package once done is closed.
type result struct {
	done  chan struct{} // nil is closed
	types *types.Package
	errs  []error
}

// all checks every package as soon as all that it imports is.
func (c *checker) all(packages []listed) error {
	for _, p := range packages {
		c.results[p.ImportPath] = &result{done: make(chan struct{})}
	}
	var running sync.WaitGroup
	for _, p := range packages {
		running.Go(func() {
			r := c.results[p.ImportPath]
			defer close(r.done)
			r.types, r.errs = c.check(p)
		})
	}
	running.Wait()
	var errs []error
	for _, p := range packages {
		errs = append(errs, c.results[p.ImportPath].errs...)
	}
	return errors.Join(errs...)
}

func (c *checker) check(p listed) (*types.Package, []error) {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	var files []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			note(err)
			continue
		}
		files = append(files, file)
	}
	config := types.Config{Importer: importer{c, p.ImportMap}, Sizes: c.sizes, Error: note, IgnoreFuncBodies: true}
	if p.Module != nil {
		config.GoVersion = "go" + p.Module.GoVersion
		config.IgnoreFuncBodies = !p.Module.Main
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "x [y.test]" is x as y's tests see it
	checked, _ := config.Check(path, c.files, files, nil)
	return checked, errs
}

// importer finds what one package imports, by its own names for it.
type importer struct {
	*checker
	names map[string]string
}

func (i importer) Import(path string) (*types.Package, error) {
	if name, ok := i.names[path]; ok {
		path = name
	}
	r, ok := i.results[path]
	if !ok {
		return nil, fmt.Errorf("go list does not name %s", path)
	}
	if r.done != nil {
		<-r.done
	}
	if r.types == nil {
		return nil, fmt.Errorf("%s does not type-check", path)
	}
	return r.types, nil
}
