package certs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// A disk that becomes full half-way leaves nothing that would be in the way of the
// next try, and files of others stay.
func TestWriteAllIsAtomic(t *testing.T) {
	full := errors.New("no space left on device")
	half := func(path string, data []byte) error {
		return errors.Join(os.WriteFile(path, data[:1], 0o600), full)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	path := func(name string) string { return filepath.Join(dir, name) }
	first := file{path("ca.crt"), []byte("first"), pki.WriteCert}
	err := writeAll(dir, []file{first, {path("ca.key"), []byte("second"), half}})
	testutil.Requires(t, errors.Is(err, full), "%v", err)
	entries, err := os.ReadDir(dir)
	testutil.Requires(t, err == nil && len(entries) == 0, "left behind: %v, %v", entries, err)
	testutil.NoError(t, writeAll(dir, []file{{path("other"), nil, pki.WriteKey}}))
	err = writeAll(dir, []file{first, {path("other"), nil, pki.WriteKey}})
	testutil.Requires(t, errors.Is(err, fs.ErrExist), "%v", err)
	entries, err = os.ReadDir(dir)
	testutil.Holds(t, err == nil && len(entries) == 1 && entries[0].Name() == "other", "%v, %v", entries, err)
}
