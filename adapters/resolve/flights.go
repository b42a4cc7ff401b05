package resolve

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/memory"
	"konnectivity/tunnel"
)

// ErrClosed is why nothing is looked up any more.
var ErrClosed = errors.New("shutting down")

// maxKept bounds the keys whose outcomes are kept; at some 500 bytes each that is half a
// megabyte.
const maxKept = 1024

// maxUnwanted bounds lookups: while more are under way, one ends when its last caller
// leaves. A client that asks and leaves, again and again, cannot pile them up.
const maxUnwanted = 128

// Flights runs one lookup per key for all its callers. A lookup goes on when its
// callers have left, so that its outcome serves the next one, unless there are too
// many; it has a bound of its own and is joined by Close. Outcomes are kept as long as work
// says. Any goroutine may use it.
type Flights[V any] struct {
	bound time.Duration
	work  func(ctx context.Context, f *Flight[V]) (value V, keep time.Duration, err error)

	mu      sync.Mutex
	kept    memory.Memory[string, *Flight[V]] // those that are done
	running map[string]*Flight[V]
	closed  bool
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// Flight is one lookup.
type Flight[V any] struct {
	Key string

	// Reached is for work to say that it got somewhere, before it is done, and Waited that it
	// had to wait for other flights first.
	Reached, Waited atomic.Bool

	done  chan struct{}
	value V
	err   error

	// Guarded by Flights.mu.

	waiting int // callers
	cancel  context.CancelFunc
}

// NewFlights makes Flights whose lookups are work, for at most bound each. work also returns
// for how long its outcome is kept; 0: not at all.
func NewFlights[V any](bound time.Duration, work func(context.Context, *Flight[V]) (V, time.Duration, error)) *Flights[V] {
	ctx, cancel := context.WithCancel(context.Background())
	return &Flights[V]{
		bound: bound, work: work, kept: memory.New[string, *Flight[V]](maxKept), running: make(map[string]*Flight[V]), ctx: ctx, cancel: cancel,
	}
}

// Do returns the outcome that is kept, or waits for the lookup of key, starting it if none
// runs, or for ctx: then left is true, and err ctx's cause.
func (s *Flights[V]) Do(ctx context.Context, key string) (value V, f *Flight[V], left bool, err error) {
	f, err = s.join(key)
	if err != nil {
		return value, new(Flight[V]), false, err
	}
	if tunnel.Closed(f.done) { // whatever ctx says
		return f.value, f, false, f.err
	}
	select {
	case <-f.done:
		return f.value, f, false, f.err
	case <-ctx.Done():
		s.leave(f)
		return value, f, true, context.Cause(ctx)
	}
}

func (s *Flights[V]) join(key string) (*Flight[V], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.kept.Get(key); ok {
		return f, nil
	}
	if s.closed {
		return nil, ErrClosed
	}
	f, ok := s.running[key]
	if !ok {
		f = &Flight[V]{Key: key, done: make(chan struct{})}
		var ctx context.Context
		ctx, f.cancel = context.WithTimeout(s.ctx, s.bound)
		s.running[key] = f
		s.wg.Go(func() { s.run(ctx, f) })
	}
	f.waiting++
	return f, nil
}

// leave is called when a caller of Do gives up.
func (s *Flights[V]) leave(f *Flight[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiting--; f.waiting == 0 && len(s.running) > maxUnwanted {
		s.forget(f)
		f.cancel()
	}
}

func (s *Flights[V]) run(ctx context.Context, f *Flight[V]) {
	defer f.cancel()
	var keep time.Duration
	f.value, keep, f.err = s.work(ctx, f)
	s.mu.Lock()
	s.forget(f)
	if keep > 0 {
		s.kept.Put(f.Key, f, keep)
	}
	s.mu.Unlock()
	close(f.done)
}

// Forget has the next lookup of key done anew.
func (s *Flights[V]) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.Forget(key)
}

// forget removes f, so that a later caller starts another. The caller holds mu.
func (s *Flights[V]) forget(f *Flight[V]) {
	if s.running[f.Key] == f {
		delete(s.running, f.Key)
	}
}

// Close cancels all lookups and waits for them.
func (s *Flights[V]) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}
