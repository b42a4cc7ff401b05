package tenant

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A look at a folder at rest allocates the paths that it looks at, and no more.
func TestALookAllocatesPathsAlone(t *testing.T) {
	w := newWorld(t, "a")
	folder := filepath.Join(w.path, "a")
	files := []string{AgentsCAFile, ClientsCAFile, SettingsFile}
	w.aged(folder)
	d := w.open()
	read := d.entries["a"].stamp
	allocs := testing.AllocsPerRun(100, func() {
		testutil.Holds(t, d.source.still("a", read, true), "it is opened though nothing has changed")
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

// A file that turns into a pipe at the wrong moment does not keep the server from
// looking at all others, as it would if it were opened to wait for a writer.
func TestAFileThatTurnsIntoAPipe(t *testing.T) {
	w := newWorld(t)
	w.put("a", SettingsFile, "serverNames: [a.example]\n")
	folder := filepath.Join(w.path, "a")
	at := func(name string) string { return filepath.Join(folder, name) }
	testutil.NoError(t, os.WriteFile(at(".file"), []byte("text"), 0o600))
	testutil.NoError(t, syscall.Mkfifo(at(".pipe"), 0o600))
	testutil.NoError(t, os.Link(at(".file"), at(CertFile)))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := []string{".pipe", ".file"}[i%2]
			_ = os.Link(at(next), at(".next"))
			_ = os.Rename(at(".next"), at(CertFile))
		}
	}()
	f := testutil.Must(openFolder(folder))(t)
	defer f.close()
	for range 20000 {
		data, err := f.read(CertFile)
		testutil.Requires(t, err != nil || string(data) == "text", "%q", data)
	}
	close(stop)
	<-stopped
}
