// Package unixsocket listens on unix sockets whose owner and mode restrict the use,
// and replaces stale ones, of processes that are gone.
//
// The server and the sidecars listen by it; the socket's file is the
// listener's.
package unixsocket

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

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

	// lookEvery is the interval at which an idle listener checks that its file is there.
	lookEvery = 2 * time.Second
)

// ErrStale is the error of Listen for a stale socket file, which no process serves,
// without Options.Replace.
var ErrStale = errors.New("exists, left by a process that is gone; remove it")

// Options of Listen. Where Guarded is false, Mode and Owner have no effect.
type Options struct {
	Replace bool        // a stale socket file
	Mode    os.FileMode // 0 means DefaultMode
	Owner   *Owner      // nil is this process

	Log logrus.FieldLogger // of what becomes of the file; nil: none
}

// Listen listens on a unix socket at path. What is not a socket is never
// deleted, and a socket that is served is never taken over. Closing the
// listener removes the file. At no time may others connect than those that o
// permits, and this process. One goroutine calls Accept, which also makes the file again if
// something else removed it.
func Listen(path string, o Options) (net.Listener, error) {
	switch {
	case strings.HasPrefix(path, "@"):
		return nil, fmt.Errorf("%s names a socket without a file, to which everybody could connect; choose the path of a file", path)
	case len(path) > maxPath:
		return nil, fmt.Errorf("the path of a unix socket has at most %d bytes, this one %d", maxPath, len(path))
	}
	l := &listener{path: path, options: o}
	if err := l.bind(); err != nil {
		return nil, err
	}
	return l, nil
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
	if err := chmod(path, cmp.Or(o.Mode, DefaultMode)); err != nil {
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
	path    string
	options Options

	mu     sync.Mutex
	socket *net.UnixListener
	file   os.FileInfo
	fault  string // why there is no file, as logged last
	closed bool
}

// bind makes the socket and its file. The caller holds the lock, or is Listen.
func (l *listener) bind() error {
	defer lock(filepath.Dir(l.path))()
	if err := removeStale(l.path, l.options.Replace); err != nil {
		return err
	}
	made, err := listenPrivately(l.path)
	if err != nil {
		return err
	}
	socket := made.(*net.UnixListener)
	socket.SetUnlinkOnClose(false)
	file, err := os.Lstat(l.path)
	if err == nil {
		if err = l.options.open(l.path); err != nil {
			remove(l.path, file)
		}
	}
	if err != nil {
		_ = socket.Close()
		return err
	}
	if l.socket != nil {
		_ = l.socket.Close()
	}
	l.socket, l.file, l.fault = socket, file, ""
	return nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		socket := l.socket
		l.mu.Unlock()
		_ = socket.SetDeadline(time.Now().Add(lookEvery))
		c, err := socket.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		l.restore()
	}
}

// restore makes another socket where the file is there no more.
func (l *listener) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	info, err := os.Lstat(l.path)
	if l.closed || err == nil && os.SameFile(info, l.file) {
		return
	}
	err = l.bind()
	switch log := l.options.Log; {
	case log == nil:
	case err == nil:
		log.WithField("path", l.path).Warn("the file of a unix socket was removed or replaced, so that nobody could connect; it is there again")
	case err.Error() != l.fault:
		l.fault = err.Error()
		log.WithField("path", l.path).WithError(err).Error("the file of a unix socket was removed or replaced, so that nobody can connect; trying to make it again and again")
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.path} }

// Close implements net.Listener.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		unlock := lock(filepath.Dir(l.path))
		remove(l.path, l.file)
		unlock()
	}
	return l.socket.Close()
}

// remove removes the file at path if it still is that one. The caller has locked its folder.
func remove(path string, file os.FileInfo) {
	if info, err := os.Lstat(path); err == nil && os.SameFile(info, file) {
		_ = os.Remove(path)
	}
}
