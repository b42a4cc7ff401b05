package hostile

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// duration is how long each attack lasts.
var duration = flag.Duration("for", 5*time.Second, "how long each attack lasts")

// binaries are built once for all tests.
var binaries suite.Binaries

func TestMain(m *testing.M) {
	if url := os.Getenv(probeEnv); url != "" {
		probe(url)
		return
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("ATTACK") != "" {
		return m.Run() // TestAttacker, which starts no program
	}
	dir, err := os.MkdirTemp("", "kbin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binaries, err = suite.Build("../..", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// newSuite is a fresh suite whose processes end with the test. A test that
// fails shows what they said.
func newSuite(t *testing.T) *suite.Suite {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // short: unix sockets live in it
	if err != nil {
		t.Fatal(err)
	}
	s, err := suite.New(binaries, dir)
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

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
