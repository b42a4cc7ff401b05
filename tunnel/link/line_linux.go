package link

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// tellsSegments says that a Line has the segments that were received.
const tellsSegments = true

// line is what the kernel tells now. Any goroutine may call it.
func (s *socket) line() (l Line) {
	if s.raw == nil {
		return l
	}
	_ = s.raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			if info.Min_rtt != math.MaxUint32 { // which it begins with
				l.RTT = time.Duration(info.Min_rtt) * time.Microsecond
			}
			l.Delivered, l.Segment, l.Received = info.Delivered, info.Snd_mss, info.Segs_in
			l.SRTT = time.Duration(info.Rtt) * time.Microsecond
			l.Lost = uint64(info.Total_retrans) + uint64(info.Rcv_ooopack)
		}
	})
	return l
}
