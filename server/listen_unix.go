//go:build unix && !linux

package server

import (
	"net"
	"syscall"
)

// maxSocketPath is what BSD kernels take (unix(4), sun_path without its NUL).
const maxSocketPath = 103

// listenPrivately has umask keep others out, since these systems know no mode
// of a socket before bind. Files that the process makes at that moment are kept
// from others as well, which harms nobody.
func listenPrivately(path string) (net.Listener, error) {
	defer syscall.Umask(syscall.Umask(^socketMode & 0o777))
	return net.Listen("unix", path)
}
