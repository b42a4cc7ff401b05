package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// Held is a set of open connections; Close ends them.
type Held struct {
	Conns []tunnel.Conn
	Dial  Latency
}

// Close resets every connection.
func (h *Held) Close() {
	for _, c := range h.Conns {
		_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
}

// Idle opens n connections, checks each with one round trip, and leaves them
// open. rate bounds new connections per second; 0 means no bound.
func (p Path) Idle(ctx context.Context, n, rate int) (*Held, error) {
	return p.hold(ctx, n, rate, "echo", ping)
}

// Stalled opens n connections that ask for size bytes each and never read.
func (p Path) Stalled(ctx context.Context, n int, size int64) (*Held, error) {
	return p.hold(ctx, n, 0, fmt.Sprintf("down %d", size), func(tunnel.Conn) error { return nil })
}

// holders is how many connections are opened at the same time.
const holders = 16

func (p Path) hold(ctx context.Context, n, rate int, command string, check func(tunnel.Conn) error) (*Held, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tickets := make(chan struct{})
	var mu sync.Mutex
	held := &Held{}
	var took []time.Duration
	var wg sync.WaitGroup
	for range min(n, holders) {
		wg.Go(func() {
			for range tickets {
				start := time.Now()
				c, err := p.open(ctx, command)
				dialed := time.Since(start)
				if err == nil {
					err = check(c)
				}
				mu.Lock()
				if c != nil {
					held.Conns = append(held.Conns, c)
				}
				took = append(took, dialed)
				mu.Unlock()
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	issue(ctx, tickets, n, rate)
	wg.Wait()
	held.Dial = distribution(took)
	if err := context.Cause(ctx); err != nil {
		held.Close()
		return nil, fmt.Errorf("holding connections over %s: %w", p.Name, err)
	}
	return held, nil
}

// issue hands out n tickets at rate a second, fewer when ctx ends.
func issue(ctx context.Context, tickets chan<- struct{}, n, rate int) {
	defer close(tickets)
	start := time.Now()
	for i := range n {
		if rate > 0 {
			due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
				return
			}
		}
		select {
		case tickets <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}
