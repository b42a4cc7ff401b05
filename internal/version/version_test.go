package version_test

import (
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/version"
)

func TestEveryBuildHasAVersion(t *testing.T) {
	i := version.Get()
	if i.Version == "" || i.Commit == "" || i.Go != runtime.Version() {
		t.Errorf("incomplete: %+v", i)
	}
	for _, part := range []string{i.Version, i.Commit, i.Go, runtime.GOARCH} {
		if !strings.Contains(i.String(), part) {
			t.Errorf("%q lacks %q", i, part)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
