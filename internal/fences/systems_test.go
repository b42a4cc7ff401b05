package fences

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
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
	"testing"

	"konnectivity/internal/testutil"
)

var systems = flag.String("systems", "", "GOOS/GOARCH to type-check the module for, spaces between; it takes a minute of processor time for ten")

func TestSystems(t *testing.T) {
	for _, system := range strings.Fields(*systems) {
		t.Run(system, func(t *testing.T) {
			t.Parallel() // each is checked on one goroutine
			testutil.NoError(t, typeCheck("../..", system))
		})
	}
}

// A name that only Linux has is reported elsewhere, in tests as well, and so is a number
// that is too large for one system.
func TestTypeCheckReports(t *testing.T) {
	if *systems == "" {
		t.Skip("make systems runs it")
	}
	const (
		enonet = "package p\n\nimport \"syscall\"\n\nfunc f() error { return syscall.ENONET }\n"
		large  = "package p\n\nfunc f() int { return 1 << 40 }\n"
	)
	for name, c := range map[string]struct{ file, text, system, want string }{
		"code":            {"p.go", enonet, "darwin/arm64", "ENONET"},
		"the same, there": {"p.go", enonet, "linux/arm64", ""},
		"a test":          {"p_test.go", enonet, "darwin/arm64", "ENONET"},
		"another's file":  {"p_linux.go", enonet, "darwin/arm64", ""},
		"a large number":  {"p.go", large, "linux/386", "overflow"},
		"no syntax":       {"p.go", "package p\n\nfunc\n", "linux/amd64", "expected"},
		"no such package": {"p.go", "package p\n\nimport _ \"nowhere\"\n", "linux/amd64", "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module p\n\ngo 1.26\n", "doc.go": "package p\n", c.file: c.text} {
				testutil.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			testutil.ErrorSays(t, typeCheck(dir, c.system), c.want, "the type check")
		})
	}
}

// listedPackage is a package as go list describes it; see go help list.
type listedPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// typeCheck type-checks all packages of the module in dir, and their tests, for a
// system, which is GOOS/GOARCH. It reads everything from source, dependencies
// included, and only the declarations of these: the compiler would find the same in a
// hundred times the time.
func typeCheck(dir, system string) error {
	goos, goarch, _ := strings.Cut(system, "/")
	packages, err := listPackages(dir, goos, goarch)
	if err != nil {
		return err
	}
	files, checked := token.NewFileSet(), map[string]*types.Package{"unsafe": types.Unsafe}
	var errs []error
	for _, p := range packages {
		config := types.Config{Importer: sourceImporter{p.ImportMap, checked}, Sizes: types.SizesFor("gc", goarch), IgnoreFuncBodies: true,
			Error: func(err error) { errs = append(errs, err) }}
		if p.Module != nil {
			config.GoVersion = "go" + p.Module.GoVersion
			config.IgnoreFuncBodies = !p.Module.Main
		}
		path, _, _ := strings.Cut(p.ImportPath, " ") // "x [y.test]" is x as y's tests see it
		checked[p.ImportPath], _ = config.Check(path, files, p.parse(files, config.Error), nil)
	}
	return errors.Join(errs...)
}

// parse reads the files of a package, as far as they can be read.
func (p listedPackage) parse(set *token.FileSet, report func(error)) (files []*ast.File) {
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			report(err)
			continue
		}
		files = append(files, file)
	}
	return files
}

// listPackages returns the packages, each behind those that it imports.
func listPackages(dir, goos, goarch string) (packages []listedPackage, err error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error", "./...")
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
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

// sourceImporter finds the packages that one package imports, by its own names for
// them.
type sourceImporter struct {
	names   map[string]string
	checked map[string]*types.Package // by import path as listed
}

func (i sourceImporter) Import(path string) (*types.Package, error) {
	if name, ok := i.names[path]; ok {
		path = name
	}
	if i.checked[path] == nil {
		return nil, fmt.Errorf("%s is not listed, or does not type-check", path)
	}
	return i.checked[path], nil
}
