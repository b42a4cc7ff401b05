package sidecar

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/internal/unixsocket"
)

// The socket serves what the port does: it may replace it, stand beside it, and
// share it with the other front.
func TestUnixSocket(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	site, path := w.site(), filepath.Join(t.TempDir(), "s")
	uds, port := "--serving-uds="+path, strconv.Itoa(testutil.Reserved(t))
	for name, c := range map[string]struct {
		options *Options
		tcp     bool
		by      string
	}{
		"alone":                {w.options(HTTP, uds), false, "http connect"},
		"beside a port":        {w.options(HTTP, uds, "--serving-port="+port), true, "http connect"},
		"beside another front": {w.options(HTTP, uds, "--socks5-serving-port="+port), false, "http connect"},
		"of both fronts":       {w.options(SOCKS5, uds, "--serving-port="+port, "--http-serving-port="+port), true, "http connect"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			r := w.start(c.options)
			_, tcp := r.addrs[c.options.Front]
			testutil.Requires(t, tcp == c.tcp && r.uds == path, "it listens on %v and %q", r.addrs, r.uds)
			for _, by := range strings.Fields(c.by) {
				for _, at := range []string{r.uds, r.addrs[HTTP]} {
					if at == "" {
						continue
					}
					if got, err := get(by, at, site+"/"+by); err != nil || got != "hello /"+by {
						t.Errorf("%s at %s: %q, %v\n%s", by, at, got, err, r.log.String())
					}
				}
			}
			testutil.NoError(t, r.stop())
			testutil.ErrorIs(t, testutil.Err(os.Lstat(path)), os.ErrNotExist, "the socket of a sidecar that has ended")
		})
	}
}

// A socket in use is left alone; one of a killed process is replaced.
func TestUnixSocketInUse(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "s")
	other := testutil.Must(net.Listen("unix", path))(w.t)
	testutil.ErrorSays(t, attempt(t, w.options(HTTP, "--serving-uds="+path)),
		"--serving-uds: "+path+" is the socket of another process", "a socket in use")
	other.(*net.UnixListener).SetUnlinkOnClose(false)
	testutil.NoError(w.t, other.Close())
	testutil.Succeeds(t, attempt(t, w.options(HTTP, "--serving-uds="+path)), "a socket that was left")
}

func TestUnixSocketPermissions(t *testing.T) {
	if !unixsocket.Guarded {
		t.Skip("a socket has no rights here")
	}
	w := newWorld(t)
	for flag, want := range map[string]os.FileMode{"--serving-uds-owner=" + strconv.Itoa(os.Getuid()): 0o770, "--serving-uds-mode=0666": 0o666} {
		r := w.start(w.options(HTTP, "--serving-uds="+filepath.Join(t.TempDir(), "s"), flag))
		testutil.Equal(t, testutil.Must(os.Lstat(r.uds))(t).Mode().Perm(), want, "%s", flag)
		testutil.NoError(w.t, r.stop())
	}
}
