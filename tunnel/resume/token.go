package resume

import (
	"sync"
	"sync/atomic"

	"konnectivity/tunnel"
)

// readToken is the turn to read of a connection that delivers to its application (see
// tunnel.Source), by one carrier after the other. It is a leaf among locks: links use it
// with theirs held. The zero value is for a connection that is read.
type readToken struct {
	mu       sync.Mutex
	app      tunnel.Receiver // nil: it is read; set once, before anything is delivered
	state    tokenState
	endKnown bool // app was told that the connection is over, which happens once

	dropping atomic.Bool // the connection was closed: bytes are dropped instead
}

// tokenState is the state of a readToken.
type tokenState uint8

const (
	tokenFree  tokenState = iota // carriers deliver
	tokenHeld                    // the application reads, or drop
	tokenAgain                   // held, and bytes came that the holder may have missed
)

// begin has app delivered to, and gives it the token.
func (t *readToken) begin(app tunnel.Receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.app, t.state = app, tokenHeld
}

// delivers reports whether there is an application to deliver to.
func (t *readToken) delivers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.app != nil
}

// ready gives the token to the application, or has its holder look again. With drops,
// the caller gets the token, to drop bytes instead.
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

// revoke takes the token from the application for good: bytes are dropped from now on. An
// application that did not hold it gets one more turn, to read the end.
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

// fail passes the failure of the connection to the application, which may be busy with
// earlier bytes.
func (t *readToken) fail(cause error) {
	t.ready()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.app != nil {
		t.app.Fail(cause)
	}
}

// claimEnd reports whether the caller is the one to tell the application that the connection
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
