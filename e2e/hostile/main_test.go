package hostile

import (
	"flag"
	"os"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
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
	return suite.Main(m, "../..", &binaries)
}

// newSuite is a fresh suite for a test.
func newSuite(t *testing.T) *suite.Suite {
	t.Helper()
	return suite.ForTest(t, binaries)
}

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T { return testutil.Must(v, err) }
