package link

import (
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// congestion keeps BBR at the rate that the line has for bulk: it has STARTUP end, and
// keeps the estimate from becoming that of small messages. While a link has nothing
// else to send, BBR v1 forgets what the line can do where segments are lost: the
// kernel then does not count the sender as idle, so the samples of small messages
// replace those of bulk. The next bulk would begin at a hundredth of the rate, and
// grow by a quarter every eight round trips.
type congestion struct {
	off     bool      // it is not BBR, or may not be begun anew
	next    time.Time // when to look again
	best    uint64    // rate that bulk had, bytes per second
	startup startup
}

const (
	// startupGain is what BBR's gain exceeds only in STARTUP; 256 is 1.
	startupGain = 2 * 256

	// lookAtStart is how often to look at BBR in STARTUP: every two to four round
	// trips on lines where it may stay there.
	lookAtStart = 200 * time.Millisecond
)

// mayRestart says whether this process may set a socket to BBR: else one that was
// set to another for a moment would stay there.
var mayRestart = sync.OnceValue(func() bool {
	allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	return slices.Contains(strings.Fields(string(allowed)), "bbr")
})

// due says whether it is time to look.
func (c *congestion) due(now time.Time) bool { return !c.off && !now.Before(c.next) }

// look paces a BBR that does not end its STARTUP, and begins one anew that has
// forgotten most of the rate that bulk had.
func (c *congestion) look(fd uintptr, now time.Time) {
	c.next = now.Add(lookEvery)
	if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || name != "bbr" {
		c.off = true
		return
	}
	b, err := askBBR(fd)
	if err != nil {
		return
	}
	if rate, ok := c.startup.pace(b, now); ok {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
	}
	if b.starts {
		c.next = now.Add(lookAtStart)
		return
	}
	if b.rate >= c.best/4 {
		c.best = max(c.best-c.best/16, b.rate)
		return
	}
	c.best = 0
	// Setting the same control again does nothing, so another is set between.
	for _, name := range []string{"reno", "bbr"} {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
}

// askBBR is what the kernel tells of BBR on a socket.
func askBBR(fd uintptr) (b bbr, err error) {
	model, err := unix.GetsockoptTCPCCBBRInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CC_INFO)
	if err != nil {
		return b, err
	}
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return b, err
	}
	buffer, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return b, err
	}
	return bbr{
		full:     int(info.Unacked)*int(info.Snd_mss) >= buffer/fullPart,
		starts:   model.Pacing_gain > startupGain,
		rate:     uint64(model.Bw_hi)<<32 | uint64(model.Bw_lo),
		rtt:      time.Duration(info.Rtt) * time.Microsecond,
		leastRTT: time.Duration(model.Min_rtt) * time.Microsecond,
	}, nil
}
