package e2e

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/tunnel"
)

// dialing dials by some ways, so many times a second, until stop is called; each
// connection carries a byte there and back. On a machine that is too busy for that, they are
// fewer: 15 are under way at most. stop tells how many were made, and fails the test
// for those that went wrong.
func dialing(t *testing.T, ways []tunnel.Dialer, target string, perSecond int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var made, failed atomic.Int64
	var work errgroup.Group
	work.SetLimit(16)
	work.Go(func() error {
		began := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/time.Duration(perSecond))))
			work.Go(func() error {
				o := echoOnce(ways[i%len(ways)], target)
				made.Add(1)
				if o.err != nil && failed.Add(1) <= 10 {
					t.Error(o.err)
				}
				return nil
			})
		}
		return nil
	})
	stop = sync.OnceFunc(func() {
		cancel()
		_ = work.Wait()
		t.Logf("%d dials, %d failed", made.Load(), failed.Load())
	})
	t.Cleanup(stop)
	return stop
}

// Servers are replaced one after the other: no connection is lost, no dial
// fails, and a server that goes does not wait for what others can carry.
func TestConnectionsMoveBeforeAServerLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{server: []string{"--graceful-shutdown-timeout=2m"}})
	base := f.rests()
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	stop := dialing(t, f.ways(), listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }), scaled(50, 200))
	for range scaled(1, 10) {
		for _, srv := range f.servers {
			s.harm()
			began := time.Now()
			stopInOrder(t, srv.Process)
			// 2 minutes are granted, and as long would it wait for the storm's probes.
			if took := time.Since(began); took > patience {
				t.Errorf("a server took %v to leave", took)
			} else {
				t.Logf("a server left in %v", took)
			}
			f.restart(srv)
			connected(t, f.agent, 2, patience)
			time.Sleep(scaled(500*time.Millisecond, time.Second))
		}
	}
	stop()
	s.end()
	f.settles(base)
}
