package resolve

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// errClosed is why nothing is looked up any more.
var errClosed = errors.New("the resolver is closed")

// flights lets everybody who wants the same name wait for one lookup. A lookup
// goes on when those who wait have left, so that its answer serves the next;
// it is bounded by time of its own and joined by close.
type flights struct {
	bound time.Duration
	work  func(ctx context.Context, f *flight) (Answer, error)

	mu      sync.Mutex
	running map[string]*flight
	wg      sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
	closed  bool
}

// flight is one lookup; answer and err may be read once done is closed.
type flight struct {
	name    string
	reached atomic.Bool // the server's side has shown that it is there
	done    chan struct{}
	answer  Answer
	err     error
}

func newFlights(bound time.Duration, work func(context.Context, *flight) (Answer, error)) *flights {
	ctx, cancel := context.WithCancel(context.Background())
	return &flights{bound: bound, work: work, running: make(map[string]*flight), ctx: ctx, cancel: cancel}
}

// join returns the lookup that runs for name, starting it if there is none.
func (s *flights) join(name string) (*flight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	f, ok := s.running[name]
	if !ok {
		f = &flight{name: name, done: make(chan struct{})}
		s.running[name] = f
		s.wg.Go(func() { s.run(f) })
	}
	return f, nil
}

func (s *flights) run(f *flight) {
	ctx, cancel := context.WithTimeout(s.ctx, s.bound)
	defer cancel()
	f.answer, f.err = s.work(ctx, f)
	s.mu.Lock()
	delete(s.running, f.name)
	s.mu.Unlock()
	close(f.done)
}

// close cancels all lookups and waits for them.
func (s *flights) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}
