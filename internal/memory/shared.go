package memory

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Shared is answers that each are asked for once at a time, and kept for a time. Make it with
// NewShared. Any goroutine may use it.
type Shared[K comparable, V any] struct {
	mu      sync.Mutex // never held over a question
	known   Memory[K, V]
	flights map[K]*flight[V]
}

// flight is a question that is asked on the goroutine of its first caller.
type flight[V any] struct {
	done   chan struct{}
	answer V    // valid once done is closed
	left   bool // the first caller left before there was an answer
}

// NewShared returns one that keeps at most that many answers.
func NewShared[K comparable, V any](most int) *Shared[K, V] {
	return &Shared[K, V]{known: New[K, V](most), flights: make(map[K]*flight[V])}
}

// Get returns the answer for key, which ask has given, here or for another caller, and for how
// long to keep it; 0: not at all. It blocks until then, or returns ctx's error. ask is to
// return soon once ctx has ended. If it panics, another caller asks.
func (s *Shared[K, V]) Get(ctx context.Context, key K, ask func() (answer V, keep time.Duration)) (answer V, err error) {
	for {
		f, mine, known := s.start(key)
		if f == nil {
			return known, nil
		}
		if mine {
			return s.lead(ctx, key, f, ask), nil
		}
		select {
		case <-f.done:
			if !f.left {
				return f.answer, nil
			}
		case <-ctx.Done():
			return answer, ctx.Err()
		}
	}
}

// start returns a known answer (f is nil), or the flight to wait for. If mine is true, the
// caller must lead it.
func (s *Shared[K, V]) start(key K) (f *flight[V], mine bool, known V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.known.Get(key); ok {
		return nil, false, v
	}
	if f := s.flights[key]; f != nil {
		return f, false, known
	}
	f = &flight[V]{done: make(chan struct{})}
	s.flights[key] = f
	return f, true, known
}

func (s *Shared[K, V]) lead(ctx context.Context, key K, f *flight[V], ask func() (V, time.Duration)) V {
	var keep time.Duration
	f.left = true // by a panic
	defer func() { s.finish(key, f, keep) }()
	f.answer, keep = ask()
	f.left = errors.Is(ctx.Err(), context.Canceled)
	return f.answer
}

func (s *Shared[K, V]) finish(key K, f *flight[V], keep time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flights, key)
	if keep > 0 {
		s.known.Put(key, f.answer, keep)
	}
	close(f.done)
}
