package link

import (
	"errors"
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
	last    time.Time // when bulk was sent last
	began   time.Time // when bulk began that goes on since
	best    uint64    // rate that bulk had, bytes per second
	startup startup
}

const (
	// startupGain is what BBR's gain exceeds only in STARTUP; 256 is 1.
	startupGain = 2 * 256

	// lookAtStart is how often to look while bulk begins, and at BBR in STARTUP: about
	// every round trip on lines where it may stay there.
	lookAtStart = 50 * time.Millisecond

	// bulkStart is for how long bulk begins. BBR forgets what the line can do within
	// ten of bulk's own round trips, or not at all: of up to 200 ms here.
	bulkStart = 2 * time.Second

	// bulkPause is the time between two turns after which bulk begins. Where a single
	// turn takes that long, every turn is a beginning.
	bulkPause = time.Second
)

// mayRestart says whether this process may set a socket to BBR: else one that was
// set to another for a moment would stay there.
var mayRestart = sync.OnceValue(func() bool {
	allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	return slices.Contains(strings.Fields(string(allowed)), "bbr")
})

// due takes in a turn of bulk, and says whether it is time to look.
func (c *congestion) due(now time.Time) bool {
	if now.Sub(c.last) >= bulkPause {
		c.began, c.next = now, now
	}
	c.last = now
	return !c.off && !now.Before(c.next)
}

// begins says whether bulk has begun only now.
func (c *congestion) begins(now time.Time) bool { return now.Sub(c.began) < bulkStart }

// look has a BBR paced that does not end its STARTUP, and begins one anew that has
// forgotten the rate that bulk had.
func (c *congestion) look(fd uintptr, now time.Time) {
	c.next = now.Add(lookEvery)
	b, ok := askBBR(fd)
	if !ok {
		c.off = true
		return
	}
	c.startup.look(b, now)
	if b.starts || c.begins(now) {
		c.next = now.Add(lookAtStart)
	}
	if !b.starts && c.forgot(b.rate, now) {
		restart(fd)
		c.next = now.Add(lookAtStart)
	}
}

// forgot takes in BBR's rate after STARTUP, and says whether BBR is to begin anew: with
// less than a quarter of the rate that bulk had, or half while bulk begins. Half may be
// what an equal competitor leaves, and a STARTUP may end at far less than the line carries.
// So each new start halves what the next one is judged by.
func (c *congestion) forgot(rate uint64, now time.Time) bool {
	if rate == 0 { // nothing was acknowledged since the last start
		return false
	}
	least, kept := c.best/4, c.best-c.best/16
	if c.begins(now) {
		least, kept = c.best/2, c.best
	}
	if rate < least {
		c.best /= 2
		return true
	}
	c.best = max(kept, rate)
	return false
}

// restart begins BBR anew. Setting the same control again does nothing, so another is set
// between.
func restart(fd uintptr) {
	for _, name := range []string{"reno", "bbr"} {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
}

// askBBR is what the kernel tells of BBR on a socket, if it has BBR.
func askBBR(fd uintptr) (b bbr, ok bool) {
	name, _ := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if name != "bbr" {
		return b, false
	}
	model, err := unix.GetsockoptTCPCCBBRInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CC_INFO)
	info, err2 := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	buffer, err3 := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if errors.Join(err, err2, err3) != nil {
		return b, false
	}
	return bbr{
		full:     int(info.Unacked)*int(info.Snd_mss) >= buffer/fullPart,
		starts:   model.Pacing_gain > startupGain,
		rate:     uint64(model.Bw_hi)<<32 | uint64(model.Bw_lo),
		rtt:      time.Duration(info.Rtt) * time.Microsecond,
		leastRTT: time.Duration(model.Min_rtt) * time.Microsecond,
	}, true
}
