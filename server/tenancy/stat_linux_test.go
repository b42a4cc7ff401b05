package tenancy

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A look at a folder at rest allocates the paths that it looks at, and no more.
func TestALookAllocatesPathsAlone(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "a.example")
	folder := filepath.Join(w.path, "a")
	files := []string{AgentsCAFile, ClientsCAFile, SpecFile}
	for _, file := range append(files, "") {
		if err := os.Chtimes(filepath.Join(folder, file), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	d := w.open()
	read := d.entries["a"].stamp
	allocs := testing.AllocsPerRun(100, func() {
		if !d.source.still("a", read) {
			t.Error("it is opened though nothing has changed")
		}
	})
	if most := float64(2 * (len(files) + 1)); allocs > most { // each twice: for Go and for the kernel
		t.Errorf("%.0f allocations for %d files and their folder, want %.0f at most", allocs, len(files), most)
	}
}
