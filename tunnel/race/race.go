// Package race tries several addresses of one destination, staggered, and
// keeps the first that works (RFC 8305 §5).
//
// It owns nothing once All has returned. Whatever dials a name with several
// addresses calls it.
package race

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

const (
	// MaxTries is how many addresses of one name Dial tries.
	MaxTries = 4

	// Stagger is the head start of each address over the next, as RFC 8305 §8
	// recommends.
	Stagger = 250 * time.Millisecond
)

// CheckTargets returns an error unless each address is HOST:PORT, and Dial tries them all.
func CheckTargets(addresses []string) error {
	if len(addresses) > MaxTries {
		return fmt.Errorf("%d addresses: a dial tries %d at most; give a name or a load balancer", len(addresses), MaxTries)
	}
	for _, one := range addresses {
		if _, _, err := tunnel.SplitAddress(one); err != nil {
			return fmt.Errorf("%.200q: want HOST:PORT", one)
		}
	}
	return nil
}

// Any is All for targets that stand in for each other, in random order, so that those who
// dial spread.
func Any[T any, C io.Closer](ctx context.Context, targets []T, dial func(context.Context, T) (C, error)) (conn C, target T, err error) {
	targets = slices.Clone(targets)
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	return All(ctx, targets, dial)
}

// Dial is All for the first MaxTries targets.
func Dial[T any, C io.Closer](ctx context.Context, targets []T, dial func(context.Context, T) (C, error)) (conn C, target T, err error) {
	return All(ctx, targets[:min(len(targets), MaxTries)], dial)
}

// All calls dial for the targets, each Stagger after the one before or as soon
// as that one has failed, and returns the first connection and its target. The
// others are cancelled, and what they still bring is closed. It returns once all its
// goroutines have; dial must heed its context, which ends when another target has won.
// If all fail, the error and target are those that tell most, and of those that tell as
// much the first. Where this process is short of descriptors or memory, it is so
// whatever the target, and that ends the race.
func All[T any, C io.Closer](ctx context.Context, targets []T, dial func(context.Context, T) (C, error)) (conn C, target T, err error) {
	switch len(targets) {
	case 0:
		return conn, target, &tunnel.DialError{Failure: tunnel.FailNoSuchHost}
	case 1: // nothing to race with, so no goroutine and no timer
		conn, err = dial(ctx, targets[0])
		return conn, targets[0], err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running[T, C]{targets: targets, dial: dial, results: make(chan result[C], len(targets)), errs: make([]error, len(targets))}
	won := r.first(ctx)
	cancel()
	for r.pending > 0 { // join; a late winner is not leaked
		r.pending--
		late := <-r.results
		switch {
		case late.err == nil && won == nil: // it was done before it heard of the end
			won = &late
		case late.err == nil:
			_ = late.conn.Close()
		}
	}
	if won == nil {
		i := r.most()
		return conn, targets[i], r.errs[i]
	}
	return won.conn, targets[won.index], nil
}

type result[C any] struct {
	index int
	conn  C
	err   error
}

// running is the state of one call of All. It belongs to the goroutine that
// made the call.
type running[T any, C io.Closer] struct {
	targets []T
	dial    func(context.Context, T) (C, error)
	results chan result[C] // room for all, so that no sender ever waits
	started int
	pending int
	errs    []error // by target
}

// first returns the first connection, or nil once nothing can become one.
func (r *running[T, C]) first(ctx context.Context) *result[C] {
	timer := time.NewTimer(Stagger)
	defer timer.Stop()
	for r.start(ctx); r.pending > 0; {
		select {
		case <-timer.C:
		case res := <-r.results:
			r.pending--
			r.errs[res.index] = res.err
			if res.err == nil {
				return &res
			}
			if ours(res.err) {
				return nil
			}
		}
		if r.started < len(r.targets) && ctx.Err() == nil {
			r.start(ctx)
			timer.Reset(Stagger)
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

// ours says whether this very process has run out of descriptors or memory. Ports
// it has anew for each address. A dial through others may fail for a shortage of
// theirs, for which there is no errno here; another address may lead past them.
func ours(err error) bool {
	var errno syscall.Errno
	return tunnel.FailureOf(err) == tunnel.FailExhausted && errors.As(err, &errno) && !tunnel.IsErrno(err, syscall.EADDRNOTAVAIL)
}

// mostTelling lists failures, from what says most about a destination with many
// addresses to what says least. A shortage comes first, even one by a bound,
// since the destination may be well. Then comes what failed after it had
// connected, as TLS does: that address is there, and will not go away.
var mostTelling = []tunnel.Failure{
	tunnel.FailExhausted, tunnel.FailBound, tunnel.FailInternal, tunnel.FailRefused, tunnel.FailReset, tunnel.FailHostUnreach,
	tunnel.FailTimeout, tunnel.FailNetUnreach, tunnel.FailDenied,
}

func telling(err error) int {
	if i := slices.Index(mostTelling, tunnel.FailureOf(err)); i >= 0 {
		return i
	}
	return len(mostTelling)
}

// most is the target whose error tells most. One that has none tells least.
func (r *running[T, C]) most() (most int) {
	for i, err := range r.errs {
		if telling(err) < telling(r.errs[most]) {
			most = i
		}
	}
	return most
}
