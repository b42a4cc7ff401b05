package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func mustListen(t *testing.T, path string, o Options) net.Listener {
	t.Helper()
	l := testutil.Opened(Listen(path, o))(t)
	return l
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func connects(t *testing.T, path string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Error(err)
		return
	}
	c.Close()
}

// leave is what a killed process leaves behind.
func leave(t *testing.T, path string) {
	t.Helper()
	l := testutil.Must(net.Listen("unix", path))(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

// A file that is no socket, and a socket that is served, are left alone; one
// that nobody serves is replaced, if that is wanted.
func TestListenOverExistingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	testutil.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	testutil.ErrorSays(t, testutil.Err(Listen(path, Options{Replace: true})), "not a socket", "regular file")
	b, _ := os.ReadFile(path)
	testutil.Requires(t, string(b) == "precious", "the file was touched")
	_ = os.Remove(path)

	live := mustListen(t, path, Options{})
	err := testutil.Err(Listen(path, Options{Replace: true}))
	testutil.ErrorSays(t, err, "another process", "live socket")
	testutil.ErrorIs(t, err, syscall.EADDRINUSE, "live socket")
	connects(t, path)
	live.Close()

	leave(t, path)
	if _, err := Listen(path, Options{}); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), path) {
		t.Errorf("stale socket, not to be replaced: %v", err)
	}
	mustListen(t, path, Options{Replace: true})
	connects(t, path)
}

// The end of one process does not remove the next one's socket.
func TestCloseRemovesItsOwnFileOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := mustListen(t, path, Options{})
	_ = os.Remove(path)
	second := mustListen(t, path, Options{})
	first.Close()
	connects(t, path)
	second.Close()
	testutil.Holds(t, gone(path), "the file is left behind")
}

// A socket whose file something else removes is there again soon, with the same rights; what
// has taken its place is left alone.
func TestFileThatWasRemovedIsMadeAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	log, lines := test.NewNullLogger()
	l := mustListen(t, path, Options{Mode: 0o600, Log: log})
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	reach := func() {
		t.Helper()
		testutil.Eventually(t, "somebody can connect", func() bool {
			c, err := net.Dial("unix", path)
			if err != nil {
				return false
			}
			defer c.Close()
			return (<-accepted).Close() == nil
		})
	}
	reach()
	testutil.NoError(t, os.Remove(path))
	reach()
	info := testutil.Must(os.Lstat(path))(t)
	testutil.Holds(t, !Guarded || info.Mode().Perm() == 0o600, "its mode is now %v", info.Mode())
	testutil.Equal(t, testutil.Lines(lines, "it is there again"), 1, "lines that say so")

	other := path + ".other"
	for n := range 2 {
		testutil.NoError(t, os.WriteFile(other, []byte("precious"), 0o600))
		testutil.NoError(t, os.Rename(other, path))
		testutil.Eventually(t, "the log says that the file is another's", func() bool { return testutil.Lines(lines, "is not a socket") > n })
		testutil.Equal(t, string(testutil.Must(os.ReadFile(path))(t)), "precious", "the other file")
		testutil.NoError(t, os.Remove(path))
		reach()
	}

	l.Close()
	_, open := <-accepted
	testutil.Holds(t, !open && gone(path), "after Close, accepted: %v, file gone: %v", open, gone(path))
}

func TestListenRefusesBadPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/" + strings.Repeat("x", 200):                "at most",
		"@abstract":                                   "without a file",
		filepath.Join(t.TempDir(), "no", "such", "s"): "no such",
	} {
		testutil.ErrorSays(t, testutil.Err(Listen(path, Options{})), want, "%s", path)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
