package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowat is how much unsent data the kernel may hold. Little, so that a
// keystroke does not queue behind a bulk copy there, where no priority
// reaches; enough for two turns, so that the wire does not run dry.
const notSentLowat = 128 << 10

// tune sets the socket under conn up for a link. Failing to is no reason to do
// without one.
func tune(conn net.Conn) {
	for conn != nil {
		if s, ok := conn.(syscall.Conn); ok {
			if raw, err := s.SyscallConn(); err == nil {
				_ = raw.Control(func(fd uintptr) {
					_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
				})
			}
			return
		}
		under, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		conn = under.NetConn()
	}
}
