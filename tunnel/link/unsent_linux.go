package link

import (
	"time"

	"golang.org/x/sys/unix"
)

// unsent bounds how much the kernel holds that it has not sent yet
// (TCP_NOTSENT_LOWAT). A message that is to go before bulk still queues behind that,
// where no priority reaches.
type unsent int

const (
	// maxUnsent is the bound at first, and on a fast line: enough for two turns, so
	// that the wire does not run dry.
	maxUnsent = 128 << 10

	// minUnsent is the bound on the slowest line: a record.
	minUnsent = 16 << 10

	// unsentTime is for how long the line is to have something to send.
	unsentTime = 5 * time.Millisecond
)

// look adapts the bound to the rate of the line, if bulk lasts: it has then been sent at
// that rate for a time. The rate before tells nothing, since little may have been sent.
func (u *unsent) look(fd uintptr, lasts bool) {
	if !lasts {
		u.set(fd, maxUnsent)
		return
	}
	if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		u.set(fd, unsentAt(info.Delivery_rate))
	}
}

// unsentAt is the bound on a line of so many bytes per second; 0: unknown.
func unsentAt(rate uint64) int {
	if rate == 0 || rate > maxUnsent*uint64(time.Second/unsentTime) {
		return maxUnsent
	}
	return max(minUnsent, int(rate/uint64(time.Second/unsentTime)))
}

func (u *unsent) set(fd uintptr, bound int) {
	if int(*u) == bound {
		return
	}
	*u = unsent(bound)
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bound)
}
