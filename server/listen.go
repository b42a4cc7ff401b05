package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

const (
	// socketMode lets the owner and its group connect, as upstream's umask
	// does (cmd/server/app/server.go).
	socketMode = 0o770

	// probeTimeout bounds the look whether somebody still serves a socket.
	probeTimeout = time.Second
)

// ListenUnix listens on a unix socket at path. A socket file that nobody
// serves any more is replaced if replace says so. What is not a socket is never
// deleted, and a socket that is served is never taken over. At no time may
// others than its owner and group connect; on Windows its folder decides who may.
func ListenUnix(path string, replace bool) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of a unix socket has at most %d bytes, this one %d", maxSocketPath, len(path))
	}
	if err := makeRoom(path, replace); err != nil {
		return nil, err
	}
	l, err := listenPrivately(path)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	info, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, socketMode) // what umask took
	}
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	return &unixListener{UnixListener: u, path: path, file: info}, nil
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
		return fmt.Errorf("%s exists, left by a process that is gone; remove it or set --delete-existing-uds-file", path)
	}
	return os.Remove(path)
}

// unixListener removes its file as it closes, unless it is another's by then:
// the next server may have put its own there.
type unixListener struct {
	*net.UnixListener
	path string
	file os.FileInfo
	once sync.Once
}

// Close implements net.Listener.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if info, err := os.Lstat(l.path); err == nil && os.SameFile(info, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
