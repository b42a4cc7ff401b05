package link

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// Bulk begins with its first turn after a pause, and for two seconds; meanwhile it is
// looked at more often.
func TestBulkBegins(t *testing.T) {
	var c congestion
	now := time.Now()
	turn := func(after time.Duration) bool { now = now.Add(after); return c.due(now) }
	testutil.Equal(t, turn(0) && c.begins(now), true, "the first turn begins")
	for range 3 {
		c.next = now.Add(time.Hour)
		testutil.Equal(t, turn(bulkPause-1), false, "looked at before its time")
	}
	testutil.Equal(t, c.begins(now), false, "bulk still begins")
	testutil.Equal(t, turn(bulkPause) && c.begins(now), true, "a turn after a pause begins")
	c.off = true
	testutil.Equal(t, turn(time.Hour), false, "looked at, though it is not BBR")
}

// Once the rate has fallen below half of bulk's while bulk begins, or a quarter later,
// BBR has forgotten it.
func TestRateOfBulk(t *testing.T) {
	for _, c := range []struct {
		name   string
		begins bool
		best   uint64
		rate   uint64
		want   uint64 // best from then on
		anew   bool
	}{
		{"the first rate", true, 0, 1600, 1600, false},
		{"a better one", true, 800, 1600, 1600, false},
		{"half as bulk begins", true, 1600, 800, 1600, false},
		{"less as bulk begins", true, 1600, 799, 800, true},
		{"none as bulk begins", true, 1600, 0, 1600, false},
		{"a quarter later", false, 1600, 400, 1500, false},
		{"less later", false, 1600, 399, 800, true},
		{"none later", false, 1600, 0, 1600, false},
		{"a better one later", false, 1600, 1700, 1700, false},
	} {
		now := time.Now()
		bulk := congestion{best: c.best, began: now.Add(-bulkStart)}
		if c.begins {
			bulk.began = now
		}
		testutil.Equal(t, bulk.forgot(c.rate, now), c.anew, "%s: forgot", c.name)
		testutil.Equal(t, bulk.best, c.want, "%s: the best", c.name)
	}
}

// TestBBRThatForgotBulkBeginsAnew: only where the rate has fallen far below what
// bulk had, and only bulk looks.
func TestBBRThatForgotBulkBeginsAnew(t *testing.T) {
	near, far := testutil.Pair(t)
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, far); far.Close() }()
	defer func() { near.Close(); <-read }()

	s := newSocket(near)
	c := &s.congestion
	starts := func() bool {
		info := ask(t, s, func(fd int) (*unix.TCPBBRInfo, error) {
			return unix.GetsockoptTCPCCBBRInfo(fd, unix.IPPROTO_TCP, unix.TCP_CC_INFO)
		})
		return info.Bw_lo == 0 && info.Bw_hi == 0 || info.Pacing_gain > startupGain // 0: nothing was acknowledged yet
	}
	s.beforeTurn(bulkTurn, 0)
	if c.off {
		t.Skip("no BBR here")
	}
	for end := time.Now().Add(10 * time.Second); starts(); {
		if time.Now().After(end) {
			t.Skip("BBR does not leave its start over loopback")
		}
		testutil.Must(near.Write(make([]byte, 1<<20)))(t)
	}
	// Whatever is still under way could end a start as soon as it has begun.
	testutil.Eventually(t, "what was written arrives", func() bool {
		info := ask(t, s, func(fd int) (*unix.TCPInfo, error) {
			return unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		return info.Unacked == 0 && info.Notsent_bytes == 0
	})
	look := func(size int) { c.next = time.Time{}; s.beforeTurn(size, 0) }
	if look(bulkTurn); starts() || c.best == 0 {
		t.Errorf("bulk that goes well was begun anew; its rate is %d", c.best)
	}
	for since, want := range map[time.Duration]time.Duration{0: lookAtStart, bulkStart - 1: lookAtStart, bulkStart: lookEvery} {
		now := time.Now()
		c.began = now.Add(-since)
		_ = s.raw.Control(func(fd uintptr) { c.look(fd, now) })
		testutil.Equal(t, c.next.Sub(now), want, "time until the next look, %v after bulk began", since)
	}
	c.best = 1 << 50
	look(bulkTurn - 1)
	testutil.Equal(t, starts(), false, "a small message begins anew")
	now := time.Now()
	c.began = now.Add(-time.Hour)
	_ = s.raw.Control(func(fd uintptr) { c.look(fd, now) })
	testutil.Equal(t, starts(), true, "BBR with a rate that is not that of bulk begins anew")
	testutil.Equal(t, c.next.Sub(now), lookAtStart, "time until a BBR that begins anew is looked at")
}
