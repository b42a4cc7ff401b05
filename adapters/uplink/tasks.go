package uplink

import (
	"context"
	"errors"
	"sync"
)

// errClosed is why a closed Server dials nothing.
var errClosed = errors.New("shutting down")

// tasks are goroutines that end soon after ctx, for one owner, who joins them. The
// methods may be called from any goroutine.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

func newTasks() *tasks {
	t := new(tasks)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// start runs f on a goroutine that end joins, unless it is too late.
func (t *tasks) start(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.wg.Go(f)
	}
}

// err is why nothing starts any more; nil: it does.
func (t *tasks) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errClosed
	}
	return nil
}

// close has nothing start any more. What runs goes on until end.
func (t *tasks) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// end ends what runs and waits for it, after close.
func (t *tasks) end() {
	t.cancel()
	t.wg.Wait()
}
