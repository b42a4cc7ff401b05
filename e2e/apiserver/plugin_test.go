package apiserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// kubectl finds the operator's tool under its name as a plugin, lists it, and hands over
// arguments, output and exit status.
func TestPlugin(t *testing.T) {
	folder := t.TempDir()
	testutil.NoError(t, os.Symlink(binaries.Path("konnectivity"), filepath.Join(folder, "kubectl-konnectivity")))
	kubectl := func(args ...string) (string, error) {
		cmd := exec.Command(program("kubectl"), args...)
		cmd.Env = []string{"PATH=" + folder, "HOME=" + folder}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for args, want := range map[string]string{
		"plugin list":                folder + "/kubectl-konnectivity",
		"konnectivity version":       "version",
		"konnectivity status --help": "\n  kubectl konnectivity status [ADDRESS...]",
	} {
		if out, err := kubectl(strings.Fields(args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("kubectl %s: %v\n%s", args, err, out)
		}
	}
	out, err := kubectl("konnectivity", "dial")
	if code, ok := err.(*exec.ExitError); !ok || code.ExitCode() != 2 || !strings.HasPrefix(out, "kubectl konnectivity: want one argument") {
		t.Errorf("%v: %s", err, out)
	}
}
