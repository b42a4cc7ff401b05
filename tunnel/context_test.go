package tunnel_test

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// What After has called is called once, or not at all where it was stopped first; and
// whoever stops it waits for it.
func TestAfter(t *testing.T) {
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
		testutil.Bubble(t, name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			if c.endAt == 0 {
				end()
			}
			time.AfterFunc(c.endAt*ms, end)
			called := 0
			stop := tunnel.After(ctx, func() { called++; time.Sleep(10 * ms) })
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
