package tunnel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if took := time.Since(began); took != c.took*ms {
					t.Errorf("stop took %v, want %v ms", took, int(c.took))
				}
				time.Sleep(time.Second)
				stop() // again
				if called != c.called {
					t.Errorf("called %d times, want %d", called, c.called)
				}
			})
		})
	}
}
