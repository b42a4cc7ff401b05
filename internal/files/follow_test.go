package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"konnectivity/internal/files"
	"konnectivity/internal/testutil"
)

// A text is parsed once, also if it cannot be used: it may be long, and is read every second. A
// file that is mended to what it was has the value that it had, which is no news to its reader.
func TestFollowParsesEachTextOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) { testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	parsed, told := 0, 0
	parse := func(text []byte) (string, error) {
		parsed++
		if string(text) == "bad" {
			return "", errors.New("bad")
		}
		return string(text), nil
	}
	write("one")
	f := testutil.Must(files.Follow(path, 10, 0, parse, func(error) { told++ }))(t)
	for i, now := range []struct {
		text, value string
		broken      bool
	}{{"one", "one", false}, {"bad", "one", true}, {"one", "one", false}, {"two", "two", false}, {"bad", "two", true}} {
		write(now.text)
		for range 3 {
			if value := f.Get(); value != now.value || f.Broken() != now.broken {
				t.Errorf("%d: %q; broken: %v", i, value, f.Broken())
			}
		}
	}
	if parsed != 3 || told != 2 {
		t.Errorf("parsed %d times, told of %d faults", parsed, told)
	}
}
