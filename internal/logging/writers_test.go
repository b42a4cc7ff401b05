package logging

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// A disk that takes no more fills standard error with nothing, but says so.
func TestWriteErrorsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		w := testutil.Must(openFile(filepath.Join(t.TempDir(), "log"), 0, &told))(t)
		_ = w.f.Close() // as good as a full disk
		write := func() {
			for range 1000 {
				n, err := w.Write([]byte("a line\n"))
				testutil.Requires(t, n == 7 && err == nil, "%d, %v: logrus would tell of it", n, err)
			}
		}
		write()
		if text := told.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "so far: 1;") || !strings.Contains(text, "closed") {
			t.Errorf("after 1,000 lines: %q", text)
		}
		time.Sleep(reportEvery)
		write()
		if text := told.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "so far: 1001;") {
			t.Errorf("a minute later: %q", text)
		}
	})
}
