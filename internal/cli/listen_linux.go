package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowat is how much the kernel may hold for a client beyond what it has
// sent. By default that is megabytes, and a writer learns of progress a third
// at a time, so a client that reads 200 KB/s seems to stand still for many
// seconds. With this limit progress shows by half of it at a time, which
// distinguishes the client from one that stalls.
const notSentLowat = 256 << 10

// tune sets the option on a listener, from which accepted connections inherit
// it. A failure is no reason not to listen.
func tune(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
	})
}
