package e2e

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
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

// A reset is a reset at the other end, never an orderly end. A unix socket
// has no reset, so it is not among the routes.
func TestResetsCrossAllHops(t *testing.T) {
	w := newWhole(t)
	for _, r := range w.routes(t)[:3] {
		t.Run(r.name, func(t *testing.T) {
			t.Run("by the target", func(t *testing.T) { resetByTarget(t, r) })
			t.Run("by the client", func(t *testing.T) { resetByClient(t, r) })
		})
	}
}

func resetByTarget(t *testing.T, d tunnel.Dialer) {
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	c := dialed(t, d, target)
	_ = c.SetDeadline(time.Now().Add(patience))
	testutil.Must(io.ReadFull(c, make([]byte, 1)))(t)
	testutil.Must(c.Write([]byte("x")))(t)
	testutil.ErrorIs(t, testutil.Err(io.ReadAll(c)), syscall.ECONNRESET, "the client reads")
}

func resetByClient(t *testing.T, d tunnel.Dialer) {
	heard := make(chan error, 1)
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		heard <- err
	})
	c := dialed(t, d, target)
	testutil.Must(c.Write([]byte("x")))(t)
	_ = c.Reset(nil)
	select {
	case err := <-heard:
		testutil.ErrorIs(t, err, syscall.ECONNRESET, "the target reads")
	case <-time.After(patience):
		t.Error("the target never heard of the client's reset")
	}
}
