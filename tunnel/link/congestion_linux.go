package link

import (
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/tunnel"
)

// congestion keeps BBR's estimate of the line's rate from being that of small
// messages. While a link has nothing else to send, BBR v1 forgets what the line
// can do where segments are lost: the kernel then does not count the sender as
// idle, so the samples of small messages replace those of bulk. The next bulk
// would begin at a hundredth of the rate, and grow by a quarter every eight round
// trips.
type congestion struct {
	raw    syscall.RawConn // nil: none to look after
	looked time.Time
	best   uint64 // rate that bulk had, bytes per second
}

const (
	// lookEvery is how often bulk looks at the rate.
	lookEvery = time.Second

	// bulkTurn is the least turn of bulk.
	bulkTurn = tunnel.RecordSize / 2

	// startupGain is what BBR's gain exceeds only in STARTUP; 256 is 1.
	startupGain = 2 * 256
)

// mayRestart says whether this process may set a socket to BBR: else one that was
// set to another for a moment would stay there.
var mayRestart = sync.OnceValue(func() bool {
	allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	return slices.Contains(strings.Fields(string(allowed)), "bbr")
})

func newCongestion(conn net.Conn) congestion {
	s, ok := tunnel.Under[syscall.Conn](conn)
	if !ok || !mayRestart() {
		return congestion{}
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return congestion{}
	}
	return congestion{raw: raw}
}

// beforeTurn is called with the size of each turn.
func (c *congestion) beforeTurn(size int) {
	if size < bulkTurn || c.raw == nil {
		return
	}
	now := time.Now()
	if now.Sub(c.looked) < lookEvery {
		return
	}
	c.looked = now
	_ = c.raw.Control(c.look)
}

// look begins BBR anew where it has forgotten most of the rate that bulk had.
// Setting the same control again does nothing, so another is set between.
func (c *congestion) look(fd uintptr) {
	if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || name != "bbr" {
		c.raw = nil
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
