package tunnel_test

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// What After and Then are given is called once, or not at all where it was stopped first. stop
// waits for it.
func TestAfter(t *testing.T) {
	testAfter(t, "a context", func(ctx context.Context, do func()) (stop func()) { return tunnel.After(ctx, do) })
	testAfter(t, "an event", func(ctx context.Context, do func()) (stop func()) {
		var e tunnel.Event
		if ctx.Err() != nil {
			e.Happen()
		}
		context.AfterFunc(ctx, e.Happen)
		return e.Then(do)
	})
}

func testAfter(t *testing.T, kind string, after func(context.Context, func()) (stop func())) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		stopAt, endAt time.Duration // in ms
		called        int
		took          time.Duration // by stop, in ms
	}{
		"stopped before":  {1, 2, 0, 0},
		"stopped while":   {3, 2, 1, 9},
		"stopped after":   {20, 2, 1, 0},
		"ended at first":  {1, 0, 1, 9},
		"stopped at once": {0, 2, 0, 0},
	} {
		testutil.Bubble(t, kind+" "+name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			if c.endAt == 0 {
				end()
			}
			time.AfterFunc(c.endAt*ms, end)
			called := 0
			stop := after(ctx, func() { called++; time.Sleep(10 * ms) })
			time.Sleep(c.stopAt * ms)
			began := time.Now()
			stop()
			testutil.Equal(t, time.Since(began), c.took*ms, "the time that stop took")
			time.Sleep(time.Second)
			stop() // again
			testutil.Equal(t, called, c.called, "calls")
		})
	}
}

// An Event happens once, and closes its channel, whenever that was asked for.
func TestEvent(t *testing.T) {
	var e tunnel.Event
	early := e.Done()
	testutil.Holds(t, !e.Happened() && !tunnel.Closed(early), "it has happened before it did")
	e.Happen()
	e.Happen()
	testutil.Holds(t, e.Happened() && tunnel.Closed(early) && tunnel.Closed(e.Done()), "it has not happened")
	var late tunnel.Event
	late.Happen()
	testutil.Holds(t, tunnel.Closed(late.Done()), "its channel is open")
}
