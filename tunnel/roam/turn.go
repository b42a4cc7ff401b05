package roam

import (
	"sync"

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

// ready gives the turn to the application, or has who has it look again.
func (t *turn) ready() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.app == nil || t.told:
	case t.taken:
		t.again = true
	default:
		t.taken = true
		t.app.Ready()
	}
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
	if t.again && !t.told {
		t.again = false
		return false
	}
	t.taken = false
	return true
}
