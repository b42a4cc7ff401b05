package unixsocket

import (
	"context"
	"net"
	"syscall"
)

// maxPath is what the kernel takes (unix(7), sun_path without its NUL).
const maxPath = 107

// Guarded says that the file's owner and mode decide who may connect.
const Guarded = true

// listenPrivately sets the mode on the socket before bind, and the kernel gives
// what umask leaves of it to the file. (umask itself is the whole process's.)
func listenPrivately(path string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), privateMode) }); failed != nil {
			return failed
		}
		return err
	}}
	return config.Listen(context.Background(), "unix", path)
}
