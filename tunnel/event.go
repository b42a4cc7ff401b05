package tunnel

import (
	"slices"
	"sync"
)

// Event happens once, or never. A server has thousands of them, so one takes 48 bytes, a tenth of
// a context, and waiting for it needs no goroutine. The zero Event has not happened. Any goroutine
// may call its methods.
type Event struct {
	mu       sync.Mutex
	happened bool
	done     chan struct{} // made when first asked for
	waiters  []*waiter
}

// waiter is a call that an Event starts.
type waiter struct {
	do   func()
	over sync.WaitGroup // do runs
}

// Happen makes e happen, unless it has.
func (e *Event) Happen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.happened {
		return
	}
	e.happened = true
	if e.done != nil {
		close(e.done)
	}
	for _, w := range e.waiters {
		w.over.Go(w.do)
	}
	e.waiters = nil
}

// Happened reports whether e has happened.
func (e *Event) Happened() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.happened
}

// Done is closed once e has happened.
func (e *Event) Done() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.done = make(chan struct{})
		if e.happened {
			close(e.done)
		}
	}
	return e.done
}

// Then calls do, on a goroutine of its own, once e has happened. stop is After's.
func (e *Event) Then(do func()) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &waiter{do: do}
	if e.happened {
		w.over.Go(do)
	} else {
		e.waiters = append(e.waiters, w)
	}
	return func() {
		e.mu.Lock()
		e.waiters = slices.DeleteFunc(e.waiters, func(other *waiter) bool { return other == w })
		e.mu.Unlock()
		w.over.Wait()
	}
}
