package link

import (
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

func lineOf(conn net.Conn) (l Line) {
	raw := rawOf(conn)
	if raw == nil {
		return l
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			if info.Min_rtt != math.MaxUint32 { // which it begins with
				l.RTT = time.Duration(info.Min_rtt) * time.Microsecond
			}
			l.Lost = uint64(info.Total_retrans) + uint64(info.Rcv_ooopack)
		}
		if model, ok := bbrModel(fd); ok {
			l.Rate = rateOf(model)
		}
	})
	return l
}
