package auth

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// errCrowded tells one that waited for a turn that there are too many.
var errCrowded = errors.New("too many agents wait for a review")

// queue gives turns as time goes by. It needs no goroutine: whoever comes or
// goes sees who is next, and where only time is wanting a timer does.
type queue struct {
	mu    sync.Mutex
	turns *turns
	armed bool // a timer is set
}

// wait blocks until it is the caller's turn, who must call done with the same
// rank when it is over; or until ctx ends or others are more worth waiting for,
// which is an error.
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

// leave takes out one that will not wait any longer, though it may have been
// told meanwhile.
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

// giveTurns tells all whose turn it is now. Callers hold q.mu.
func (q *queue) giveTurns() {
	for {
		w, early := q.turns.next(time.Now())
		if w != nil {
			w.told <- true // has room: each is told once
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
