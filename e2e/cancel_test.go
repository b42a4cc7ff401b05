package e2e

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// holdings is what some processes hold, by what and whose it is.
type holdings map[string]int

// within says whether nothing is above the base.
func (h holdings) within(base holdings) bool {
	for what, n := range h {
		if n > base[what] {
			return false
		}
	}
	return true
}

// Dials that are given up at any moment, before, while or after they succeed,
// leave nothing behind in any process.
func TestCancelledDialsLeaveNothing(t *testing.T) {
	f := newFleet(t, 1, flags{})
	w := f.whole()
	target := testutil.Echo(t)
	routes := append(w.routes(t), route{"grpc", viaGRPC(w.server.UDS)})
	for _, r := range routes { // what is lazily made, is
		testutil.NoError(t, try(t, r, target))
	}
	base := f.rests()
	dials := scaled(3_000, 100_000)
	// A dial is given up within a time of which half are long enough, on this
	// machine and now: it grows with each that was too short.
	var longest, next, cancelled, succeeded atomic.Int64
	longest.Store(int64(6 * time.Millisecond))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(dials); i = next.Add(1) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(longest.Load())))
				c, err := routes[i%int64(len(routes))].Dial(ctx, tunnel.NewFlow("tcp", target))
				cancel()
				switch {
				case err == nil:
					succeeded.Add(1)
					longest.Store(max(longest.Load()*49/50, int64(time.Millisecond)))
					c.Close()
				case ctx.Err() != nil:
					cancelled.Add(1)
					longest.Store(longest.Load() * 51 / 50)
				default:
					t.Errorf("%s: %v", routes[i%int64(len(routes))].name, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d dials cancelled, %d had succeeded before", cancelled.Load(), succeeded.Load())
	testutil.Holds(t, cancelled.Load() >= int64(dials)/10 && succeeded.Load() != 0,
		"the moments were not random: %d cancelled, %d succeeded", cancelled.Load(), succeeded.Load())
	f.settles(base)
	for _, r := range routes {
		testutil.NoError(t, try(t, r, target))
	}
}
