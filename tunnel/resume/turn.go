package resume

import (
	"sync"
	"sync/atomic"

	"konnectivity/tunnel"
)

// turn is whose turn it is to read, where a connection delivers to its application
// (see tunnel.Source), whichever carrier delivers to the connection. It is a leaf
// among locks. The zero value is that of a connection that is read.
type turn struct {
	mu    sync.Mutex
	app   tunnel.Receiver // nil: it is read; set once, before anything is delivered
	taken bool            // app has the turn
	again bool            // and is to look once more
	told  bool            // that it is over, which it is told once

	wasted atomic.Bool // app is to get nothing more: what comes is dropped
}

// begin has app delivered to, and gives it the turn.
func (t *turn) begin(app tunnel.Receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.app, t.taken = app, true
}

// delivers says whether there is anybody to deliver to.
func (t *turn) delivers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.app != nil
}

// ready gives the turn to the application, or has who has it look again. It says
// whether the turn is the caller's to drop what comes instead.
func (t *turn) ready() (drops bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	drops = t.wasted.Load()
	switch {
	case t.app == nil || t.told && !drops:
		return false
	case t.taken:
		t.again = true
		return false
	}
	t.taken = true
	if !drops {
		t.app.Ready()
	}
	return drops
}

// drop has what comes from now on dropped, and the turn is the caller's to do that. An
// application that had no turn gets one, to be told that it is over.
func (t *turn) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken && !t.told {
		t.app.Ready()
	}
	t.taken, t.again = true, false
	t.wasted.Store(true)
}

// take gives the application what a carrier delivers.
func (t *turn) take(chunk tunnel.Chunk) int {
	if t.wasted.Load() {
		return chunk.Len()
	}
	return t.app.Take(chunk)
}

// fail has the application told that it is over, also where it is stuck with what
// came before.
func (t *turn) fail(cause error) {
	t.ready()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.app != nil {
		t.app.Fail(cause)
	}
}

// tell says that the application is to be told the end now, which happens once: who
// has the turn may be about to hand it back as a carrier tells the end by itself.
func (t *turn) tell() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := !t.told
	t.told = t.app != nil
	return first
}

// end ends the turn, unless there is a reason to look again.
func (t *turn) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.again && (!t.told || t.wasted.Load()) {
		t.again = false
		return false
	}
	t.taken = false
	return true
}
