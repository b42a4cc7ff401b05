package fences

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// source is one parsed Go file that is not a test.
type source struct {
	folder  string // within the module, slash separated; "" is the root
	fset    *token.FileSet
	file    *ast.File
	imports map[string]string // local name → import path
}

// readSources parses every Go file of the module that is no test.
func readSources(t *testing.T, root string) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, p, d.Name())
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		all = append(all, parse(t, strings.TrimPrefix(filepath.ToSlash(relative), "."), p, string(text)))
		return nil
	})
	testutil.NoError(t, err)
	return all
}

// skipFolder leaves out hidden folders, test data and modules of their own.
func skipFolder(root, p, name string) error {
	if p == root {
		return nil
	}
	if strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// parse reads one file.
func parse(t *testing.T, folder, name, text string) source {
	t.Helper()
	s := source{folder: folder, fset: token.NewFileSet(), imports: map[string]string{}}
	var err error
	if s.file, err = parser.ParseFile(s.fset, name, text, 0); err != nil {
		t.Fatal(err)
	}
	for _, spec := range s.file.Imports {
		target := testutil.Must(strconv.Unquote(spec.Path.Value))(t)
		local := path.Base(target)
		if isVersion(local) {
			local = path.Base(path.Dir(target))
		}
		if spec.Name != nil {
			local = spec.Name.Name
		}
		s.imports[local] = target
	}
	return s
}

// isVersion recognises the last element of paths such as k8s.io/klog/v2.
func isVersion(element string) bool {
	_, err := strconv.Atoi(strings.TrimPrefix(element, "v"))
	return strings.HasPrefix(element, "v") && err == nil
}

// at is a position for messages.
func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() }

// within says whether folder is one of the folders or lies in one.
func within(folder string, folders []string) bool {
	for _, f := range folders {
		if f == "" || folder == f || strings.HasPrefix(folder, f+"/") {
			return true
		}
	}
	return false
}
