package agent

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel/link"
)

// asked is a gRPC connection whose health calls are counted, and answered by
// bytes on the wire or not at all.
type asked struct {
	grpc.ClientConnInterface
	wire  io.Writer // nil: silent
	calls atomic.Int64
}

func (a *asked) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	a.calls.Add(1)
	if a.wire == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	_, _ = a.wire.Write([]byte("x"))
	return status.Error(codes.Unimplemented, "unknown service")
}

// living runs test beside a watched connection whose bytes are read.
func living(t *testing.T, keepalive time.Duration, answers bool, test func(far net.Conn, a *asked, heard *heardConn, watched <-chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		heard := newHeardConn(near)
		read := make(chan struct{})
		go func() { defer close(read); _, _ = io.Copy(io.Discard, heard) }()
		a := &asked{}
		if answers {
			a.wire = far
		}
		ended := make(chan struct{})
		watched := wait.Go(func() { watchLiveness(a, heard, keepalive, ended) })
		test(far, a, heard, watched)
		close(ended)
		<-watched
		_ = near.Close()
		_ = far.Close()
		<-read
	})
}

// Setting the clock is no silence: its measure is the time that has passed.
func TestSilenceIsNotMeasuredByTheClock(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	heard := newHeardConn(near)
	for _, when := range []string{"at first", "after a byte"} {
		if at := heard.heard(); !strings.Contains(at.String(), " m=") { // which a time of the clock lacks
			t.Errorf("%s: heard at %v", when, at)
		}
		go func() { _, _ = far.Write([]byte("x")); _ = far.Close() }()
		_, _ = heard.Read(make([]byte, 1))
	}
}

func TestDeadServerIsNoticed(t *testing.T) {
	for keepalive, bound := range map[time.Duration]time.Duration{0: 20 * time.Second, 30 * time.Second: 45 * time.Second, time.Millisecond: 12 * time.Second} {
		living(t, keepalive, false, func(_ net.Conn, _ *asked, heard *heardConn, watched <-chan struct{}) {
			start := time.Now()
			<-watched
			took := time.Since(start)
			testutil.Holds(t, took <= bound && heard.silent.Load(), "keepalive %v: noticed after %v", keepalive, took)
		})
	}
}

// A server that answers lives, and is not asked all the time, however small --keepalive-time is.
func TestQuietServerLives(t *testing.T) {
	for keepalive, c := range map[time.Duration]struct {
		lasts       time.Duration
		least, most int64
	}{0: {time.Hour, 600, 730}, time.Millisecond: {time.Minute, 1, 61}} {
		living(t, keepalive, true, func(_ net.Conn, a *asked, heard *heardConn, _ <-chan struct{}) {
			time.Sleep(c.lasts)
			testutil.Holds(t, !heard.silent.Load(), "taken for dead though it answers")
			testutil.Between(t, a.calls.Load(), c.least, c.most, "how often it is asked in %v", c.lasts)
		})
	}
}

func TestBusyServerIsNotAsked(t *testing.T) {
	living(t, 0, true, func(far net.Conn, a *asked, _ *heardConn, _ <-chan struct{}) {
		for range 1000 {
			_, _ = far.Write([]byte("x"))
			time.Sleep(time.Second)
		}
		testutil.Equal(t, a.calls.Load(), 0, "how often it asked")
	})
}

// A process that was stopped finds that the server has been silent for that time, and what it
// has said meanwhile is yet to be read.
func TestOwnSilenceIsNotTheServers(t *testing.T) {
	type step struct {
		silence, took time.Duration // in seconds
		asks, dead    bool
		next          time.Duration
	}
	for name, looks := range map[string][]step{
		"dead":                         {{5, 5, true, false, 5}, {10, 5, true, false, 5}, {15, 5, true, true, 0}},
		"spoke, and dead":              {{2, 5, false, false, 3}, {5, 3, true, false, 5}, {10, 5, true, false, 5}, {15, 5, true, true, 0}},
		"stopped before it asked":      {{30, 30, true, false, 5}, {2, 5, false, false, 3}, {5, 3, true, false, 5}},
		"stopped after it asked":       {{5, 5, true, false, 5}, {40, 35, true, false, 5}, {4, 5, false, false, 1}},
		"stopped, and dead":            {{30, 30, true, false, 5}, {35, 5, true, false, 5}, {40, 5, true, true, 0}},
		"stopped beside one that says": {{1, 30, false, false, 4}, {5, 4, true, false, 5}},
		"starved, and dead":            {{20, 20, true, false, 5}, {40, 20, true, false, 5}, {60, 20, true, true, 0}},
		"starved a little":             {{7, 7, true, false, 5}, {14, 7, true, false, 1}, {16, 2, true, true, 0}},
	} {
		now := time.Now()
		s := silenceFrom(0, now)
		for i, want := range looks {
			now = now.Add(want.took * time.Second)
			asks, dead := look(&s, now, now.Add(-want.silence*time.Second))
			testutil.Holds(t, asks == want.asks && dead == want.dead && (dead || s.Pause == want.next*time.Second),
				"%s: look %d: asks %v, dead %v, the next after %v", name, i, asks, dead, s.Pause)
		}
	}
}

// A process that was stopped for less than half of its --keepalive-time, but for longer than
// the server has to answer, does not leave it unasked.
func TestShortStopAtLongKeepaliveLeavesNoServer(t *testing.T) {
	for _, keepalive := range []time.Duration{8 * time.Second, 30 * time.Second, time.Hour} { // the latter are HyperShift's, and upstream's default
		stop := 12 * time.Second
		start := time.Now()
		s := silenceFrom(keepalive, start)
		if asks, dead := look(&s, start.Add(keepalive+stop), start); dead || !asks {
			t.Errorf("%v: after a stop of %v: given up %v, asked %v, and was never asked before", keepalive, stop, dead, asks)
		}
		_, dead := look(&s, start.Add(keepalive+stop+5*time.Second), start)
		testutil.Holds(t, !dead, "%v: given up 5 s after it was asked", keepalive)
		_, dead = look(&s, start.Add(keepalive+stop+10*time.Second), start)
		testutil.Holds(t, dead, "%v: has not answered in 10 s after a stop of %v, and is not given up", keepalive, stop)
		for _, stop := range []time.Duration{10 * time.Second, 12 * time.Second, 22 * time.Second} {
			s = silenceFrom(keepalive, start)
			_, _ = look(&s, start.Add(keepalive), start)
			_, dead := look(&s, start.Add(keepalive+stop), start)
			testutil.Holds(t, !dead, "%v: given up after a stop of %v right behind the question", keepalive, stop)
		}
	}
}

func silenceFrom(keepalive time.Duration, now time.Time) link.Silence {
	ask, dead := keepaliveTimes(keepalive)
	return link.NewSilence(ask, dead, now)
}
