package link

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitSegments bounds segments of a socket that is not connected yet, both ways.
func limitSegments(raw syscall.RawConn, size int) {
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, size) })
}

func segmentsOf(raw syscall.RawConn) (seen segments) {
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			seen = segments{int(info.Snd_mss), int(info.Retransmits), info.Unacked > 0 && info.Total_retrans > 0, info.Rcv_ooopack > 0, time.Duration(info.Rtt) * time.Microsecond}
		}
	})
	return seen
}

// fragment lets routers divide the packets of a connection whose oldest segment was sent again: the
// MTU on the way may have shrunk, and nothing tells of it, as for Path. It costs nothing where that
// has not. Routers of IPv6 divide nothing.
func (s *socket) fragment() {
	if s.raw == nil || segmentsOf(s.raw).repeats == 0 {
		return
	}
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	})
}
