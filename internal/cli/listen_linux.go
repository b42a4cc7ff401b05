package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowat is how much the kernel may hold for a client beyond what it has
// sent. By default that is megabytes, of which a writer is told in thirds: a
// client that reads 200 KB/s then seems to stand still for many seconds. By
// half of this at a time it is seen to move, which tells it from one that
// stalls.
const notSentLowat = 256 << 10

// tune sets a listener up; the connections it accepts inherit the option.
// Failing to is no reason not to listen.
func tune(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
	})
}
