package suite

import (
	"fmt"
	"os"
	"testing"
)

// Main builds the programs, sets binaries and runs the tests of a package, whose
// TestMain exits with what it returns. moduleRoot is the folder of go.mod.
func Main(m *testing.M, moduleRoot string, binaries *Binaries) (status int) {
	dir, err := os.MkdirTemp("", "kbin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if *binaries, err = Build(moduleRoot, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// ForTest is a fresh suite whose processes end with the test. A test that fails
// shows what they said.
func ForTest(t testing.TB, bin Binaries) *Suite {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // short: unix sockets live in it
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(bin, dir)
	if err != nil {
		os.RemoveAll(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range s.Processes() {
				t.Logf("--- %s (pid %d)\n%s", p.Name, p.PID(), p.Output())
			}
		}
		s.Close()
		os.RemoveAll(dir)
	})
	return s
}
