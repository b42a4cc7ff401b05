package version_test

import (
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/internal/version"
)

func TestEveryBuildHasAVersion(t *testing.T) {
	i := version.Get()
	testutil.Holds(t, i.Version != "" && i.Commit != "" && i.Go == runtime.Version(), "incomplete: %+v", i)
	for _, part := range []string{i.Version, i.Commit, i.Go, runtime.GOARCH} {
		testutil.Contains(t, i.String(), part, "the version")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
