// Package race tries several addresses of one destination, staggered, and
// keeps the first that works (RFC 8305 §5).
package race

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

const (
	// MaxTries is how many addresses of one name are tried.
	MaxTries = 4

	// Stagger is the head start of each address over the next, as RFC 8305 §8
	// recommends.
	Stagger = 250 * time.Millisecond
)

// Dial calls dial for up to MaxTries targets, each Stagger after the one before
// or as soon as that one has failed, and returns the first connection and its
// target. The others are cancelled and what they still bring is handed to
// discard. It returns once all its goroutines have; dial must heed its context,
// which ends when another target has won. If all fail, the error is the first
// target's, unless ctx ended.
func Dial[T, C any](ctx context.Context, targets []T, dial func(context.Context, T) (C, error), discard func(C)) (conn C, target T, err error) {
	targets = targets[:min(len(targets), MaxTries)]
	switch len(targets) {
	case 0:
		return conn, target, &tunnel.DialError{Failure: tunnel.FailNoSuchHost}
	case 1:
		conn, err = dial(ctx, targets[0])
		return conn, targets[0], err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &running[T, C]{targets: targets, dial: dial, results: make(chan result[C], len(targets))}
	won := r.first(ctx)
	cancel()
	for r.pending > 0 { // join; a late winner is not leaked
		if late := r.next(); late.err == nil {
			discard(late.conn)
		}
	}
	if won == nil {
		return conn, targets[0], r.errs[0]
	}
	return won.conn, targets[won.index], nil
}

type result[C any] struct {
	index int
	conn  C
	err   error
}

// running belongs to the goroutine that called Dial.
type running[T, C any] struct {
	targets []T
	dial    func(context.Context, T) (C, error)
	results chan result[C] // room for all, so that no sender ever waits
	started int
	pending int
	errs    [MaxTries]error
}

func (r *running[T, C]) first(ctx context.Context) *result[C] {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for r.started < len(r.targets) || r.pending > 0 {
		tick := timer.C
		if r.started == len(r.targets) {
			tick = nil
		}
		select {
		case <-tick:
			r.start(ctx)
			timer.Reset(Stagger)
		case res := <-r.results:
			r.pending--
			if res.err == nil {
				return &res
			}
			r.errs[res.index] = res.err
			timer.Reset(0)
		}
	}
	return nil
}

func (r *running[T, C]) start(ctx context.Context) {
	i := r.started
	r.started++
	r.pending++
	go func() {
		conn, err := r.dial(ctx, r.targets[i])
		r.results <- result[C]{i, conn, err}
	}()
}

func (r *running[T, C]) next() result[C] {
	r.pending--
	return <-r.results
}
