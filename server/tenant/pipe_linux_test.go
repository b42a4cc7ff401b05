package tenant

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
)

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
		if data, err := f.read(CertFile); err == nil && string(data) != "text" {
			t.Fatalf("%q", data)
		}
	}
	close(stop)
	<-stopped
}
