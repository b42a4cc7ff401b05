// Package unixsocket listens on unix sockets whose owner and mode restrict the use,
// and replaces stale ones, of processes that are gone.
//
// The server and the sidecars listen by it; the socket's file is the
// listener's.
package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

const (
	// DefaultMode lets the owner and its group connect, as upstream's umask
	// does (cmd/server/app/server.go).
	DefaultMode os.FileMode = 0o770

	// privateMode is the file's mode until its owner is set.
	privateMode = 0o700

	// probeTimeout bounds the attempt to connect to a socket that exists.
	probeTimeout = time.Second
)

// ErrStale is the error of Listen for a stale socket file, which no process serves,
// without Options.Replace.
var ErrStale = errors.New("exists, left by a process that is gone; remove it")

// Options of Listen. Where Guarded is false, Mode and Owner have no effect.
type Options struct {
	Replace bool        // a stale socket file
	Mode    os.FileMode // 0 means DefaultMode
	Owner   *Owner      // nil is this process
}

// Listen listens on a unix socket at path. What is not a socket is never
// deleted, and a socket that is served is never taken over. Closing the
// listener removes the file. At no time may others connect than those that o
// permits, and this process.
func Listen(path string, o Options) (net.Listener, error) {
	switch {
	case strings.HasPrefix(path, "@"):
		return nil, fmt.Errorf("%s names a socket without a file, to which everybody could connect; choose the path of a file", path)
	case len(path) > maxPath:
		return nil, fmt.Errorf("the path of a unix socket has at most %d bytes, this one %d", maxPath, len(path))
	}
	defer lock(filepath.Dir(path))()
	if err := removeStale(path, o.Replace); err != nil {
		return nil, err
	}
	l, err := listenPrivately(path)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	info, err := os.Lstat(path)
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	own := &listener{UnixListener: u, path: path, file: info}
	if err := o.open(path); err != nil {
		own.remove()
		_ = u.Close()
		return nil, err
	}
	return own, nil
}

// open sets the file's group, mode and owner, in this order: until the group is set
// it has no rights, and once another user owns the file this process cannot change it.
func (o *Options) open(path string) error {
	if !Guarded {
		return nil
	}
	owner := Owner{uid: unchanged, gid: unchanged}
	if o.Owner != nil {
		owner = *o.Owner
	}
	if err := chown(path, unchanged, owner.gid); err != nil {
		return err
	}
	mode := o.Mode
	if mode == 0 {
		mode = DefaultMode
	}
	if err := chmod(path, mode); err != nil {
		return err
	}
	return chown(path, owner.uid, unchanged)
}

func removeStale(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or choose another path", path)
	}
	c, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		_ = c.Close()
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		// A stale one gives no other answer than one that is served.
		return taken{fmt.Errorf("%s is the socket of another process, running or not, to which this one may not connect: permission denied", path),
			[]error{os.ErrPermission, syscall.EADDRINUSE}}
	case !tunnel.IsErrno(err, syscall.ECONNREFUSED):
		return taken{fmt.Errorf("%s is the socket of another process that is running", path), []error{syscall.EADDRINUSE}}
	case !replace:
		return fmt.Errorf("%s %w", path, ErrStale)
	}
	return os.Remove(path)
}

// taken is the error of a socket that may be another process's, and what else it is.
type taken struct {
	error
	is []error
}

// Unwrap lets errors.Is find what a TCP port in use is.
func (t taken) Unwrap() []error { return t.is }

// listener removes its file as it closes, unless the file is another's by then:
// the next process may have put its own there.
type listener struct {
	*net.UnixListener
	path string
	file os.FileInfo
	once sync.Once
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		defer lock(filepath.Dir(l.path))()
		l.remove()
	})
	return l.UnixListener.Close()
}

// remove removes the file. The caller has locked its folder.
func (l *listener) remove() {
	if info, err := os.Lstat(l.path); err == nil && os.SameFile(info, l.file) {
		_ = os.Remove(l.path)
	}
}
