package link

import (
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// congestion keeps BBR's estimate of the line's rate from being that of small
// messages. While a link has nothing else to send, BBR v1 forgets what the line
// can do where segments are lost: the kernel then does not count the sender as
// idle, so the samples of small messages replace those of bulk. The next bulk
// would begin at a hundredth of the rate, and grow by a quarter every eight round
// trips.
type congestion struct {
	off  bool   // it is not BBR, or may not be begun anew
	best uint64 // rate that bulk had, bytes per second
}

// startupGain is what BBR's gain exceeds only in STARTUP; 256 is 1.
const startupGain = 2 * 256

// mayRestart says whether this process may set a socket to BBR: else one that was
// set to another for a moment would stay there.
var mayRestart = sync.OnceValue(func() bool {
	allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	return slices.Contains(strings.Fields(string(allowed)), "bbr")
})

// look begins BBR anew where it has forgotten most of the rate that bulk had.
// Setting the same control again does nothing, so another is set between.
func (c *congestion) look(fd uintptr) {
	if c.off {
		return
	}
	if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || name != "bbr" {
		c.off = true
		return
	}
	info, err := unix.GetsockoptTCPCCBBRInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CC_INFO)
	if err != nil || info.Pacing_gain > startupGain {
		return
	}
	rate := uint64(info.Bw_hi)<<32 | uint64(info.Bw_lo)
	if rate >= c.best/4 {
		c.best = max(c.best-c.best/16, rate)
		return
	}
	c.best = 0
	for _, name := range []string{"reno", "bbr"} {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
}
