// Package e2e looks at the built programs from outside, with real clients.
// `make e2e` installs what it needs.
package e2e

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"k8s.io/klog/v2"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// binaries are built once for all tests.
var binaries suite.Binaries

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The real konnectivity-client logs each tunnel that a test cuts.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	return suite.Main(m, "..", &binaries)
}

// newSuite is a fresh suite for a test.
func newSuite(t *testing.T) *suite.Suite {
	t.Helper()
	return suite.ForTest(t, binaries)
}

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T { return testutil.Must(v, err) }

// curl runs the real curl and returns what it printed.
func curl(t testing.TB, args ...string) ([]byte, error) {
	t.Helper()
	path, err := exec.LookPath("curl")
	testutil.Requires(t, err == nil, "curl is not installed; `make e2e` installs it")
	args = append([]string{"--silent", "--show-error", "--fail", "--max-time", "300", "--noproxy", ""}, args...) // 50 MB on a busy machine
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("curl %q: %w: %s", args, err, exit.Stderr)
	}
	return out, err
}
