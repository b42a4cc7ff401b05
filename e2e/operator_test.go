package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Quickstart goes by every path once. An image may have no folder for temporary files.
func TestQuickstartOnce(t *testing.T) {
	cmd := exec.Command(binaries.Path("konnectivity"), "quickstart", "--once", "--json")
	cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR="+filepath.Join(t.TempDir(), "missing")), t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var paths []struct {
		Path         string
		Milliseconds float64
		Error        string
	}
	if err := json.Unmarshal(out, &paths); err != nil || len(paths) < 7 {
		t.Fatalf("%v, %d paths in\n%s", err, len(paths), out)
	}
	for _, p := range paths {
		if p.Error != "" || p.Milliseconds <= 0 {
			t.Errorf("%+v", p)
		}
	}
}
