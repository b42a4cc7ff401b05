package bench

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/internal/wait"
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

func (p Path) hold(ctx context.Context, n, rate int, command string, check func(tunnel.Conn) error) (*Held, error) {
	held, err := Hold(ctx, n, rate, func(ctx context.Context, _ int) (tunnel.Conn, time.Duration, error) {
		start := time.Now()
		c, err := p.open(ctx, command)
		if err != nil {
			return nil, 0, err
		}
		err = check(c) // part of the time: the relay chain takes a dial before it has reached the target
		return c, time.Since(start), err
	})
	if err != nil {
		err = fmt.Errorf("holding connections over %s: %w", p.Name, err)
	}
	return held, err
}

// holders is how many connections are opened at the same time.
const holders = 16

// Hold opens n connections, at rate a second or, if that is 0, as fast as open
// returns. open gets a number from 0 to n-1 and returns how long its dial took. If
// one fails, Hold closes the others and returns that failure.
func Hold(ctx context.Context, n, rate int, open func(ctx context.Context, i int) (tunnel.Conn, time.Duration, error)) (*Held, error) {
	opening, running := errgroup.WithContext(ctx)
	opening.SetLimit(holders)
	var mu sync.Mutex
	held := &Held{}
	var dials []time.Duration
	for i, start := 0, time.Now(); i < n && running.Err() == nil; i++ {
		if rate > 0 {
			wait.For(running, time.Until(start.Add(time.Duration(i)*time.Second/time.Duration(rate))))
		}
		opening.Go(func() error {
			c, took, err := open(running, i)
			mu.Lock()
			defer mu.Unlock()
			if c != nil {
				held.Conns = append(held.Conns, c)
			}
			dials = append(dials, took)
			return err
		})
	}
	err := cmp.Or(opening.Wait(), context.Cause(ctx))
	held.Dial = Distribution(dials)
	if err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}
