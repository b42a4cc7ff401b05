package resume

import (
	"sync"
	"sync/atomic"

	"konnectivity/tunnel"
)

// readToken is the turn to read where a connection delivers to its application (see
// tunnel.Source), whichever carrier delivers to the connection. It is a leaf among
// locks: links use it with their own held. The zero value is that of a connection that
// is read.
type readToken struct {
	mu       sync.Mutex
	app      tunnel.Receiver // nil: it is read; set once, before anything is delivered
	state    tokenState
	endKnown bool // app was told that the connection is over, which happens once

	dropping atomic.Bool // app gets nothing more: what comes is dropped
}

// tokenState tells who may read.
type tokenState uint8

const (
	tokenFree  tokenState = iota // nobody: carriers deliver
	tokenHeld                    // the application, or drop
	tokenAgain                   // so it does, and something came that it may have missed
)

// begin has app delivered to, and gives it the token.
func (t *readToken) begin(app tunnel.Receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.app, t.state = app, tokenHeld
}

// delivers tells whether there is an application to deliver to.
func (t *readToken) delivers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.app != nil
}

// ready gives the token to the application, or has its holder look again. Where drops
// is true the token is the caller's, to drop what comes instead.
func (t *readToken) ready() (drops bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	drops = t.dropping.Load()
	switch {
	case t.app == nil || t.endKnown && !drops:
		return false
	case t.state != tokenFree:
		t.state = tokenAgain
		return false
	}
	t.state = tokenHeld
	if !drops {
		t.app.Ready()
	}
	return drops
}

// revoke gives the token to the caller, to drop what comes from now on. An application
// that did not hold it is given one turn, to be told that the connection is over.
func (t *readToken) revoke() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == tokenFree && !t.endKnown {
		t.app.Ready()
	}
	t.state = tokenHeld
	t.dropping.Store(true)
}

// take gives the application what a carrier delivers.
func (t *readToken) take(chunk tunnel.Chunk) int {
	if t.dropping.Load() {
		return chunk.Len()
	}
	return t.app.Take(chunk)
}

// fail tells the application that the connection has failed, also where it is stuck with
// what came before.
func (t *readToken) fail(cause error) {
	t.ready()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.app != nil {
		t.app.Fail(cause)
	}
}

// claimEnd tells whether the caller is the one to tell the application that the connection
// is over: a holder may be about to return its token as a carrier tells the end.
func (t *readToken) claimEnd() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := !t.endKnown
	t.endKnown = t.app != nil
	return first
}

// release returns the token, unless its holder is to look again.
func (t *readToken) release() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == tokenAgain && (!t.endKnown || t.dropping.Load()) {
		t.state = tokenHeld
		return false
	}
	t.state = tokenFree
	return true
}
