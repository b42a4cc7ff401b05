package auth

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// errCrowded says that too many wait for a turn.
var errCrowded = errors.New("too many agents wait for a review")

// queue gives turns as time passes. It needs no goroutine: callers that arrive
// or leave find out who is next, and a timer does if only time is missing.
type queue struct {
	mu    sync.Mutex
	turns *turns
	armed bool // a timer is set
}

// wait blocks until it is the caller's turn. The caller must then call done
// with the same rank. It is an error if ctx ends first, or if others displace
// the caller.
func (q *queue) wait(ctx context.Context, r rank, from netip.Prefix) error {
	w := newWaiter(r, from)
	q.mu.Lock()
	if away := q.turns.add(w); away != nil {
		away.told <- false
	}
	q.giveTurns()
	q.mu.Unlock()
	select {
	case turn := <-w.told:
		if !turn {
			return errCrowded
		}
		return nil
	case <-ctx.Done():
		q.leave(w)
		return errors.Join(errCrowded, ctx.Err())
	}
}

// leave removes a waiter that gives up, even if it was just given its turn.
func (q *queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case turn := <-w.told:
		if turn {
			q.turns.done(w.rank)
			q.giveTurns()
		}
	default:
		q.turns.leave(w)
	}
}

// done ends a turn.
func (q *queue) done(r rank) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns.done(r)
	q.giveTurns()
}

// spend uses up a turn for a call that is no review.
func (q *queue) spend() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns.spend(time.Now())
}

// giveTurns wakes all whose turn it is now. Callers hold q.mu.
func (q *queue) giveTurns() {
	for {
		w, early := q.turns.next(time.Now())
		if w != nil {
			w.told <- true // has room: each waiter is woken once
			continue
		}
		if early > 0 && !q.armed {
			q.armed = true
			time.AfterFunc(early, q.tick)
		}
		return
	}
}

func (q *queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	q.giveTurns()
}
