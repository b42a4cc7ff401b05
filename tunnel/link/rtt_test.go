package link

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestRoundTripFloor(t *testing.T) {
	var f rttFloor
	for n := range rttSamples {
		if f.known() {
			t.Errorf("known after %d samples", n)
		}
		f.add(time.Time{}, time.Hour)
	}
	if !f.known() {
		t.Errorf("unknown after %d samples", rttSamples)
	}
	if f.add(time.Time{}.Add(rttMemory), time.Hour); !f.known() {
		t.Error("unknown in the next minute")
	}
	if f.add(time.Time{}.Add(2*rttMemory), time.Hour); f.known() {
		t.Error("known by one sample a minute")
	}
	f = rttFloor{}
	at := time.Unix(1_700_000_000, 0)
	if got := f.get(); got != 0 {
		t.Fatalf("without a sample: %v", got)
	}
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
		if got := f.get(); got != step.want {
			t.Errorf("step %d: floor %v, want %v", i, got, step.want)
		}
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
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if grew := st.recv.credit.window > initialWindow; grew != c.grows {
					t.Errorf("window %d of %d, round trip %v, floor %v", st.recv.credit.window, initialWindow, ses.alive.rtt, ses.alive.floor.get())
				}
			})
		})
	}
}
