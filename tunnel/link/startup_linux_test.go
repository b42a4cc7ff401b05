package link

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// A BBR that starts is paced once its rate has stood still for three round trips
// while what it sends waits on the line, and until it has ended its start.
func TestBBRThatDoesNotEndItsStartIsPaced(t *testing.T) {
	const ms = time.Millisecond
	queue := bbr{starts: true, full: true, rate: 1000, rtt: 100 * ms, leastRTT: 50 * ms}
	with := func(change func(*bbr)) bbr { b := queue; change(&b); return b }
	type look struct {
		at   time.Duration
		b    bbr
		rate int // that it is paced to; 0: as before
	}
	for name, looks := range map[string][]look{
		"ends its start": {
			{0, queue, 0},
			{299 * ms, queue, 0},
			{300 * ms, queue, 750},
			{500 * ms, queue, 0},
			{700 * ms, with(func(b *bbr) { b.starts = false }), unpaced},
			{900 * ms, with(func(b *bbr) { b.starts = false }), 0},
		},
		"grows": {
			{0, queue, 0},
			{300 * ms, with(func(b *bbr) { b.rate = 1250 }), 0},
			{600 * ms, with(func(b *bbr) { b.rate = 1300 }), 937 + 38},
		},
		"began anew": {
			{0, queue, 0},
			{300 * ms, with(func(b *bbr) { b.rate = 10 }), 0},
			{500 * ms, with(func(b *bbr) { b.rate = 100 }), 0},
			{700 * ms, with(func(b *bbr) { b.rate = 1000 }), 0},
			{1000 * ms, queue, 750},
		},
		"has no queue": {
			{0, queue, 0},
			{300 * ms, with(func(b *bbr) { b.rtt = 60 * ms }), 0},
		},
		"waits for its source": {
			{0, queue, 0},
			{300 * ms, with(func(b *bbr) { b.full = false }), 0},
		},
		"is near": {
			{0, queue, 0},
			{300 * ms, with(func(b *bbr) { b.rtt, b.leastRTT = 5*ms, ms }), 0},
		},
		"is beyond what can be set": {
			{0, with(func(b *bbr) { b.rate = 1 << 40 }), 0},
			{300 * ms, with(func(b *bbr) { b.rate = 1 << 40 }), 0},
		},
		"goes on starting": {
			{0, queue, 0},
			{300 * ms, queue, 750},
			{1499 * ms, queue, 0},
			{1500 * ms, queue, unpaced},
			{11499 * ms, queue, 0},
			{11500 * ms, queue, 750},
		},
	} {
		var s startup
		t0 := time.Now()
		for i, l := range looks {
			rate, ok := s.pace(l.b, t0.Add(l.at))
			if ok != (l.rate != 0) || rate != l.rate {
				t.Errorf("BBR that %s, look %d: %d %v, want %d", name, i, rate, ok, l.rate)
			}
		}
	}
}

// TestPaceIsLifted on the socket as soon as BBR has ended its start.
func TestPaceIsLifted(t *testing.T) {
	near, far := testutil.Pair(t)
	defer near.Close()
	defer far.Close()
	s := newSocket(near)
	c := &s.congestion
	pace := func() int {
		return ask(t, s, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE) })
	}
	set := func(rate int) {
		_ = s.raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate)
		})
	}
	free := pace()
	set(1 << 20)
	if got := pace(); got != 1<<20 {
		t.Skipf("paced to %d", got)
	}
	c.startup = startup{paced: true, since: time.Now().Add(-time.Hour)}
	s.beforeTurn(bulkTurn)
	if c.off {
		t.Skip("no BBR here")
	}
	if got := pace(); got != free {
		t.Errorf("paced to %d after an hour, want %d", got, free)
	}
}
