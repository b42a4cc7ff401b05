package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowat bounds the bytes that the kernel holds for a client before it sends them.
// The default is megabytes, of which a writer sees progress in thirds, so that a client
// that reads 200 KB/s seems to stall for many seconds. With this limit progress shows in
// halves of it, which distinguishes slow clients from stalled ones.
const notSentLowat = 256 << 10

// tune sets the option on a listener, from which accepted connections inherit it. Errors
// are ignored.
func tune(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
	})
}
