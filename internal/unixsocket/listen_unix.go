//go:build unix && !linux

package unixsocket

import (
	"net"
	"syscall"
)

// maxPath is what BSD kernels take (unix(4), sun_path without its NUL).
const maxPath = 103

// Guarded says that the file's owner and mode decide who may connect.
const Guarded = true

// listenPrivately keeps others out by umask, since these systems know no mode
// of a socket before bind. Files that the process makes at that moment are kept
// from others as well, which does no harm.
func listenPrivately(path string) (net.Listener, error) {
	defer syscall.Umask(syscall.Umask(^privateMode & 0o777))
	return net.Listen("unix", path)
}
