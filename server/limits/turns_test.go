package limits

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// work is what dials cost: one processor serves them in order.
type work struct {
	queue chan chan struct{}
	each  time.Duration
}

func (w *work) run(ctx context.Context) {
	for {
		select {
		case dial := <-w.queue:
			time.Sleep(w.each)
			close(dial)
		case <-ctx.Done():
			return
		}
	}
}

// dials has n goroutines of a client dial until ctx ends, and counts.
func (w *work) dials(ctx context.Context, t *turns, who *tunnel.Client, n int, wg *sync.WaitGroup) *int {
	count, mu := new(int), new(sync.Mutex)
	for range n {
		wg.Go(func() {
			for {
				done, err := t.wait(ctx, who)
				if err != nil {
					return
				}
				answer := make(chan struct{})
				w.queue <- answer
				select {
				case <-answer:
				case <-ctx.Done():
				}
				done()
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				*count++
				mu.Unlock()
			}
		})
	}
	return count
}

// wantIdle fails t unless all turns were given back, and nobody waits for one.
func wantIdle(t *testing.T, turns *turns) {
	t.Helper()
	n, waiting := turns.queue.Working()
	testutil.Holds(t, n == 0 && !waiting, "%d turns are not given back; others wait: %v", n, waiting)
}

// TestAStormLeavesOthersTheirTurns: beside a client with five hundred dials at
// a time, one with four keeps half of what it has alone.
func TestAStormLeavesOthersTheirTurns(t *testing.T) {
	for _, hogs := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			w := &work{queue: make(chan chan struct{}, 10000), each: 100 * time.Microsecond}
			turns := newTurnsOf(8)
			var wg sync.WaitGroup
			wg.Go(func() { w.run(ctx) })
			for range hogs {
				w.dials(ctx, turns, &tunnel.Client{}, 500, &wg)
			}
			got := w.dials(ctx, turns, &tunnel.Client{}, 4, &wg)
			time.Sleep(3 * time.Second)
			cancel()
			synctest.Wait()
			wg.Wait()
			testutil.AtLeast(t, *got, 30000/(hogs+1)*4/5, "dials of a client, of 30000, beside %d storms of them", hogs)
			wantIdle(t, turns)
		})
	}
}

// TestDialsThatHangKeepNoTurn: what waits for its destination is no work, and
// one that is alone does not wait at all.
func TestDialsThatHangKeepNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurnsOf(2)
		a, b := &tunnel.Client{}, &tunnel.Client{}
		start := time.Now()
		for range 1000 {
			testutil.Must(turns.wait(t.Context(), a))(t)
		}
		testutil.Equal(t, time.Since(start), 0, "a client alone waited")
		for range 10 {
			testutil.Must(turns.wait(t.Context(), b))(t)
		}
		testutil.AtMost(t, time.Since(start), 10*youngFor, "dials of another waited")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := turns.wait(ctx, b)
		testutil.Requires(t, err == nil, "%v", err) // its part, for now
		cancel()
		testutil.Fails(t, testutil.Err(turns.wait(ctx, b)), "a dial that was given up has its turn")
		time.Sleep(time.Second)
		synctest.Wait()
		wantIdle(t, turns)
	})
}

// TestPartsThatNobodyUsesAreGivenToWhoWaits: a client that dials now and then
// takes from a busy one what it uses, and not half of all.
func TestPartsThatNobodyUsesAreGivenToWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurnsOf(8)
		ctx := testutil.ContextFor(t, time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { // never more than one
			for quiet := new(tunnel.Client); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
				if done, err := turns.wait(ctx, quiet); err == nil {
					done()
				}
			}
		})
		count, mu, busy := 0, sync.Mutex{}, new(tunnel.Client)
		for range 100 {
			wg.Go(func() {
				for ctx.Err() == nil {
					done, err := turns.wait(ctx, busy)
					if err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond) // the destination's answer
					done()
					mu.Lock()
					count++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		testutil.AtLeast(t, count, int(time.Second/youngFor*8)*9/10, "dials of a busy client")
		wantIdle(t, turns)
	})
}
