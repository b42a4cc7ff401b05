package link

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// limitSegments bounds segments of a socket that is not connected yet, both ways.
func limitSegments(raw syscall.RawConn, size int) {
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, size) })
}

// unacknowledged reports whether something was sent again, and something is not acknowledged.
func unacknowledged(raw syscall.RawConn) (segment int, yes bool) {
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			segment, yes = int(info.Snd_mss), info.Unacked > 0 && info.Total_retrans > 0
		}
	})
	return segment, yes
}
