//go:build unix

package unixsocket

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// rights are what decides who may connect.
type rights struct {
	mode     os.FileMode
	uid, gid int
}

func rightsOf(t *testing.T, path string) rights {
	t.Helper()
	info := testutil.Must(os.Lstat(path))(t)
	s := info.Sys().(*syscall.Stat_t)
	return rights{info.Mode().Perm(), int(s.Uid), int(s.Gid)}
}

// The mode is what was asked for, whatever umask says, and until then nobody
// else may connect.
func TestMode(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o077} {
		path := filepath.Join(t.TempDir(), "s")
		listen := func(asked os.FileMode) func() (net.Listener, error) {
			return func() (net.Listener, error) { return Listen(path, Options{Mode: asked}) }
		}
		for want, listen := range map[os.FileMode]func() (net.Listener, error){
			privateMode: func() (net.Listener, error) { return listenPrivately(path) }, // at first
			DefaultMode: listen(0), 0o600: listen(0o600), 0o666: listen(0o666),
		} {
			old := syscall.Umask(umask)
			l, err := listen()
			syscall.Umask(old)
			testutil.NoError(t, err)
			testutil.Equal(t, rightsOf(t, path).mode, want, "umask %03o: mode", umask)
			l.Close()
		}
	}
}

// A link that somebody puts in the socket's place has nothing else opened to others.
func TestModeSparesSymlinkTarget(t *testing.T) {
	dir := t.TempDir()
	secret, path := filepath.Join(dir, "secret"), filepath.Join(dir, "s")
	testutil.NoError(t, os.WriteFile(secret, nil, 0o600))
	testutil.NoError(t, os.Symlink(secret, path))
	_ = (&Options{Mode: 0o666}).open(path) // which on Linux is an error
	testutil.Equal(t, rightsOf(t, secret).mode, 0o600, "the mode of what the link leads to")
}

func TestOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	me := rights{DefaultMode, os.Getuid(), os.Getgid()}
	l := mustListen(t, path, Options{Owner: &Owner{uid: me.uid, gid: unchanged}})
	testutil.Equal(t, rightsOf(t, path), me, "its own")
	l.Close()

	other := Owner{uid: me.uid + 1, gid: me.gid + 1}
	if os.Getuid() != 0 {
		if _, err := Listen(path, Options{Owner: &other}); err == nil || !strings.Contains(err.Error(), "CAP_CHOWN") || !gone(path) {
			t.Errorf("another's, without the right to give: %v; file gone: %v", err, gone(path))
		}
		return
	}
	l = mustListen(t, path, Options{Mode: 0o660, Owner: &other})
	got, want := rightsOf(t, path), (rights{0o660, other.uid, other.gid})
	testutil.Holds(t, got == want, "%+v, want %+v", got, want)
	l.Close()
	testutil.Holds(t, gone(path), "a socket that was given away is left behind")
}

func TestOwnerByName(t *testing.T) {
	for _, uid := range []int{os.Getuid(), 1} {
		t.Run(strconv.Itoa(uid), func(t *testing.T) {
			known, err := user.LookupId(strconv.Itoa(uid))
			if err != nil {
				t.Skip(err)
			}
			testutil.Equal(t, testutil.Must(ParseOwner(known.Username))(t).uid, uid, "%s", known.Username)
		})
	}
}

// Of several that start at once where a socket was left, one gets it, and keeps it.
func TestConcurrentListenHasOneWinner(t *testing.T) {
	const rounds, racers = 50, 8
	for range rounds {
		path := filepath.Join(t.TempDir(), "s")
		leave(t, path)
		began := time.Now()
		var racing sync.WaitGroup
		var won [racers]net.Listener
		for i := range racers {
			racing.Go(func() { won[i], _ = Listen(path, Options{Replace: true}) })
		}
		racing.Wait()
		intime := time.Since(began) < min(lockTimeout, probeTimeout) // or one may have gone without the lock
		winners := 0
		for _, l := range won {
			if l != nil {
				winners++
				if intime {
					connects(t, path)
				}
				l.Close()
			}
		}
		testutil.Requires(t, !intime || winners == 1, "%d of %d have the socket", winners, racers)
	}
}

// A pipe where the folder should be is nobody's to wait for.
func TestLockSkipsPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	if l, err := Listen(filepath.Join(pipe, "s"), Options{}); err == nil {
		_ = l.Close()
		t.Error("it listens in a pipe")
	}
}
