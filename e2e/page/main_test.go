package page

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// binaries are built once for all tests.
var binaries suite.Binaries

// pictures is where pictures of the page are kept; "" keeps none.
var pictures = flag.String("pictures", "", "folder to keep pictures of the page in")

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	defer func() {
		if running != nil {
			running.close()
		}
	}()
	return suite.Main(m, "../..", &binaries)
}

// picture saves a picture of the tab if the flag -pictures is given.
func (b *tab) picture(name string, whole bool) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	var out struct{ Data string }
	testutil.NoError(b.t, json.Unmarshal(b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}), &out))
	data := testutil.Must(base64.StdEncoding.DecodeString(out.Data))(b.t)
	testutil.NoError(b.t, os.WriteFile(filepath.Join(*pictures, name+".png"), data, 0o644))
}

// must fails the test on err.
func must[T any](v T, err error) func(testing.TB) T { return testutil.Must(v, err) }
