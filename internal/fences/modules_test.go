package fences

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// A module without code of its own, such as the one that pins Kubernetes, is
// compiled by nothing that runs at every change.
func TestModulesCanBeRead(t *testing.T) {
	count := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return fs.SkipDir
		case d.Name() == "go.mod":
			count++
			out, err := exec.Command("go", "mod", "edit", "-json", path).CombinedOutput()
			testutil.Holds(t, err == nil, "%s: %v: %s", path, err, out)
		}
		return nil
	})
	testutil.Holds(t, err == nil && count >= 2, "found %d modules: %v", count, err)
}
