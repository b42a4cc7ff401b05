// Package unixsocket listens on unix sockets that only some may use, and that
// replace what a process that is gone has left behind.
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

	// privateMode is the file's until everything about it is settled.
	privateMode = 0o700

	// probeTimeout bounds the look whether somebody still serves a socket.
	probeTimeout = time.Second
)

// ErrLeft is the error of Listen for a socket file that nobody serves any more
// and that is not to be replaced.
var ErrLeft = errors.New("exists, left by a process that is gone; remove it")

// Options say what becomes of a file that is there already, and who may connect
// where Guarded.
type Options struct {
	Replace bool        // a socket file that nobody serves any more
	Mode    os.FileMode // 0 means DefaultMode
	Owner   *Owner      // nil is this process
}

// Listen listens on a unix socket at path. What is not a socket is never
// deleted, and a socket that is served is never taken over. Closing the
// listener removes the file. At no time may anybody connect but those that o
// names, and this process.
func Listen(path string, o Options) (net.Listener, error) {
	switch {
	case strings.HasPrefix(path, "@"):
		return nil, fmt.Errorf("%s names a socket without a file, to which everybody could connect; choose the path of a file", path)
	case len(path) > maxPath:
		return nil, fmt.Errorf("the path of a unix socket has at most %d bytes, this one %d", maxPath, len(path))
	}
	defer alone(filepath.Dir(path))()
	if err := makeRoom(path, o.Replace); err != nil {
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
		_ = own.Close()
		return nil, err
	}
	return own, nil
}

// open lets those connect that o names, in an order in which nobody else ever
// can: the group comes before its rights, and the owner last, because from then
// on the file is another's.
func (o *Options) open(path string) error {
	if !Guarded {
		return nil
	}
	owner := Owner{uid: unchanged, gid: unchanged}
	if o.Owner != nil {
		owner = *o.Owner
	}
	if err := give(path, unchanged, owner.gid); err != nil {
		return err
	}
	mode := o.Mode
	if mode == 0 {
		mode = DefaultMode
	}
	if err := chmod(path, mode); err != nil {
		return err
	}
	return give(path, owner.uid, unchanged)
}

func makeRoom(path string, replace bool) error {
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
	case !tunnel.IsErrno(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s is the socket of another process that is running", path)
	case !replace:
		return fmt.Errorf("%s %w", path, ErrLeft)
	}
	return os.Remove(path)
}

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
		defer alone(filepath.Dir(l.path))()
		if info, err := os.Lstat(l.path); err == nil && os.SameFile(info, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
