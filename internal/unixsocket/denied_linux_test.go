package unixsocket

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// asAnother calls do with the rights of another user on files.
func asAnother(t *testing.T, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can act for another user")
	}
	done := make(chan struct{})
	became := false
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with the goroutine
		_ = unix.Setfsuid(65534)
		if uid, _ := unix.SetfsuidRetUid(-1); uid == 65534 {
			became = true
			do()
		}
	}()
	<-done
	if !became {
		t.Skip("root may not act for another user here")
	}
}

// A process that may not connect to a socket cannot tell whether it is served.
func TestListenWhereConnectingIsDenied(t *testing.T) {
	dir := testutil.Must(os.MkdirTemp("", "denied"))(t)
	defer os.RemoveAll(dir)
	testutil.NoError(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "s")
	for name, there := range map[string]func(){
		"live": func() { mustListen(t, path, Options{Mode: 0o600}) },
		"stale": func() {
			leave(t, path)
			testutil.NoError(t, os.Chmod(path, 0o600))
		},
	} {
		there()
		asAnother(t, func() {
			_, err := Listen(path, Options{Replace: true})
			testutil.Holds(t, errors.Is(err, os.ErrPermission) && errors.Is(err, syscall.EADDRINUSE) &&
				strings.Contains(err.Error(), "may not connect"), "%s: %v", name, err)
		})
		_ = os.Remove(path)
	}
}

// Listen that may not give the socket to its owner removes it under the lock that it has.
func TestListenThatFailsWaitsForNoLock(t *testing.T) {
	dir := testutil.Must(os.MkdirTemp("", "denied"))(t)
	defer os.RemoveAll(dir)
	testutil.NoError(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "s")
	synctest.Test(t, func(t *testing.T) {
		asAnother(t, func() {
			began := time.Now()
			_, err := Listen(path, Options{Owner: &Owner{uid: unchanged, gid: 1}})
			testutil.Holds(t, errors.Is(err, os.ErrPermission) && gone(path), "%v; file gone: %v", err, gone(path))
			testutil.Equal(t, time.Since(began), 0, "it took")
		})
	})
}
