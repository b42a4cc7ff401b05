package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"konnectivity/internal/memory"
)

// remembered are answers of an API: each is asked for once at a time, and kept for a time.
// Make it with newRemembered. Any goroutine may use it.
type remembered[K comparable, V any] struct {
	mu      sync.Mutex // never held over a call
	known   memory.Memory[K, V]
	flights map[K]*flight[V]
}

// flight is a question that is asked on the goroutine of its first caller.
type flight[V any] struct {
	done   chan struct{}
	answer V    // valid once done is closed
	left   bool // the first caller left before there was an answer
}

func newRemembered[K comparable, V any](most int) *remembered[K, V] {
	return &remembered[K, V]{known: memory.New[K, V](most), flights: make(map[K]*flight[V])}
}

// get returns the answer for key, which ask has given, here or for another caller, and for how
// long to keep it; 0: not at all. It blocks until then, or returns ctx's error. ask is to
// return soon once ctx has ended.
func (r *remembered[K, V]) get(ctx context.Context, key K, ask func() (answer V, keep time.Duration)) (answer V, err error) {
	for {
		f, mine, known := r.start(key)
		if f == nil {
			return known, nil
		}
		if mine {
			answer, keep := ask()
			r.finish(ctx, key, f, answer, keep)
			return answer, nil
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
// caller must carry it out.
func (r *remembered[K, V]) start(key K) (f *flight[V], mine bool, known V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.known.Get(key); ok {
		return nil, false, v
	}
	if f := r.flights[key]; f != nil {
		return f, false, known
	}
	f = &flight[V]{done: make(chan struct{})}
	r.flights[key] = f
	return f, true, known
}

func (r *remembered[K, V]) finish(ctx context.Context, key K, f *flight[V], answer V, keep time.Duration) {
	f.answer = answer
	f.left = errors.Is(ctx.Err(), context.Canceled)
	r.mu.Lock()
	delete(r.flights, key)
	if keep > 0 {
		r.known.Put(key, answer, keep)
	}
	r.mu.Unlock()
	close(f.done)
}
