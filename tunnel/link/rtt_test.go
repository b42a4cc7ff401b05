package link

import (
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

func TestRoundTripFloor(t *testing.T) {
	var f rttFloor
	for n := range rttSamples {
		testutil.Equal(t, f.known(), false, "known after %d samples", n)
		f.add(time.Time{}, time.Hour)
	}
	testutil.Equal(t, f.known(), true, "known after %d samples", rttSamples)
	f.add(time.Time{}.Add(rttMemory), time.Hour)
	testutil.Equal(t, f.known(), true, "known in the next minute")
	f.add(time.Time{}.Add(2*rttMemory), time.Hour)
	testutil.Equal(t, f.known(), false, "known by one sample a minute")
	f = rttFloor{}
	at := time.Unix(1_700_000_000, 0)
	testutil.Equal(t, f.get(), 0, "floor without a sample")
	for i, step := range []struct {
		after        time.Duration
		sample, want time.Duration
	}{
		{0, 10, 10},
		{time.Second, 300, 10}, // a queue on the way
		{time.Second, 7, 7},
		{rttMemory, 200, 7}, // the former period still counts
		{rttMemory / 2, 250, 7},
		{rttMemory / 2, 260, 200}, // the path is longer by now
		{rttMemory, 90, 90},
		{5 * rttMemory, 500, 90},
		{rttMemory, 600, 500},
	} {
		at = at.Add(step.after)
		f.add(at, step.sample)
		testutil.Equal(t, f.get(), step.want, "floor of step %d", i)
	}
}

// A path that is only congested gets no larger windows: what lengthens its
// round trips is what already waits. One that is long does.
func TestWindowsGrowWithThePathNotWithItsQueue(t *testing.T) {
	for _, c := range []struct {
		name  string
		first time.Duration
		grows bool
	}{{"congested", time.Millisecond, false}, {"long", 50 * time.Millisecond, true}} {
		testutil.Bubble(t, c.name, func(t *testing.T) {
			conn, _ := net.Pipe()
			ses := newSession(conn, Config{}, true)
			ses.sender.stepLocked(takesTurn) // nothing is sent
			st := newStream(ses, 1, nil)
			measure := func(rtt time.Duration) {
				now := time.Now()
				ses.alive.answered(ses.alive.ping(now.Add(-rtt)), now)
			}
			measure(c.first)
			for range 50 {
				measure(50 * time.Millisecond)
			}
			for range 8 {
				time.Sleep(20 * time.Millisecond) // half a window each
				half := int(st.recv.credit.window / 2)
				ses.count.unread += half
				st.consumedLocked(half)
			}
			testutil.Equal(t, st.recv.credit.window > initialWindow, c.grows, "it grows, with a round trip of %v", ses.alive.rtt)
		})
	}
}
