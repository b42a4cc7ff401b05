package tenant

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A look at a folder at rest allocates the paths that it looks at, and no more.
func TestALookAllocatesPathsAlone(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "a.example")
	folder := filepath.Join(w.path, "a")
	files := []string{AgentsCAFile, ClientsCAFile, SettingsFile}
	w.aged(folder)
	d := w.open()
	read := d.entries["a"].stamp
	allocs := testing.AllocsPerRun(100, func() {
		if !d.source.still("a", read, true) {
			t.Error("it is opened though nothing has changed")
		}
	})
	if most := float64(2 * (len(files) + 1)); allocs > most { // each twice: for Go and for the kernel
		t.Errorf("%.0f allocations for %d files and their folder, want %.0f at most", allocs, len(files), most)
	}
}

// A file that is overwritten, and given its time and size back, is seen to have
// changed: the system notes when, and lets nobody set that.
func TestAFileThatWasOverwrittenUnderItsTime(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "one.example")
	folder := filepath.Join(w.path, "a")
	w.aged(folder)
	d := w.open()
	file := filepath.Join(folder, SettingsFile)
	before := testutil.Must(os.Stat(file))(t)
	for now := before; lookOf(now).ctim == lookOf(before).ctim; { // clocks of file systems are coarse
		w.put("a", SettingsFile, "serverNames: [two.example]")
		var failed error
		now, failed = os.Stat(file)
		testutil.NoError(t, errors.Join(failed, os.Chtimes(file, time.Time{}, before.ModTime())))
	}
	d.Look()
	w.finds(d, "two.example", "a")
}
