package link

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
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
		rate uint64 // that it is paced to from then on; 0: not
	}
	for name, looks := range map[string][]look{
		"ends its start": {
			{0, queue, 0},
			{299 * ms, queue, 0},
			{300 * ms, queue, 750},
			{500 * ms, queue, 750},
			{700 * ms, with(func(b *bbr) { b.starts = false }), 0},
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
		"goes on starting": {
			{0, queue, 0},
			{300 * ms, queue, 750},
			{900 * ms, with(func(b *bbr) { b.rate = 700 }), 750}, // as it is paced to
			{1499 * ms, queue, 750},
			{1500 * ms, queue, 0},
			{11499 * ms, queue, 0},
			{11500 * ms, queue, 750},
		},
	} {
		var s startup
		t0 := time.Now()
		for i, l := range looks {
			s.look(l.b, t0.Add(l.at))
			testutil.Equal(t, s.bound, l.rate, "pace of BBR that %s, at look %d", name, i)
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
	s.pacing, c.startup = 1<<20, startup{bound: 1 << 20, since: time.Now().Add(-time.Hour)}
	s.beforeTurn(bulkTurn, 0)
	if c.off {
		t.Skip("no BBR here")
	}
	testutil.Equal(t, pace(), free, "pace after an hour")
}

// A link is paced from its next turn of bulk on, to the lower of two bounds. Any turn lifts
// the bound of lanes.
func TestLinkIsPaced(t *testing.T) {
	near, far := testutil.Pair(t)
	defer near.Close()
	go func() { defer far.Close(); _, _ = io.Copy(io.Discard, far) }()
	ses := new(Session)
	ses.sender.frameWriter = newFrameWriter(near)
	s := &ses.sender.socket
	s.congestion.off = true
	pace := func() int {
		return ask(t, *s, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE) })
	}
	free := pace()
	for i, turn := range []struct {
		size           int
		lanes, startup uint64
		want           int
	}{
		{bulkTurn, 1 << 20, 0, 1 << 20},
		{bulkTurn, 1 << 20, 1 << 22, 1 << 20},
		{bulkTurn, 1 << 21, 1 << 19, 1 << 19},
		{bulkTurn - 1, 1 << 18, 0, 1 << 19},
		{bulkTurn - 1, 0, 1 << 20, 1 << 20},
		{bulkTurn - 1, 0, 0, 1 << 20},
		{bulkTurn, 1 << 20, 0, 1 << 20},
		{bulkTurn - 1, 0, 0, free},
		{bulkTurn, 1 << 20, 0, 1 << 20},
		{bulkTurn, 0, 0, free},
		{bulkTurn, maxPacing, 0, maxPacing},
		{bulkTurn, maxPacing + 1, 0, free},
	} {
		s.congestion.startup.bound = turn.startup
		ses.Pace(turn.lanes)
		data := []tunnel.Chunk{tunnel.NewChunk(turn.size)}
		testutil.NoError(t, testutil.Err(ses.sender.writeTurn(nil, 1, data, turn.size)))
		testutil.Equal(t, pace(), turn.want, "pace at turn %d", i)
	}
}
