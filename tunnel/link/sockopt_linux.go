package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"konnectivity/tunnel"
)

// notSentLowat is how much unsent data the kernel may hold. Little, so that a
// keystroke does not queue behind a bulk copy there, where no priority
// reaches; enough for two turns, so that the wire does not run dry.
const notSentLowat = 128 << 10

// tune sets up the socket under conn for a link. If that fails, the link does
// without.
func tune(conn net.Conn) {
	s, ok := tunnel.Under[syscall.Conn](conn)
	if !ok {
		return
	}
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
		})
	}
}
