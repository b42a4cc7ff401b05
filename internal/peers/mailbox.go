package peers

import (
	"sync"

	"konnectivity/internal/wait"
)

// mailbox holds what the loop is asked to do, in order. It needs no cap: each
// attempt, look-up and waiting caller has at most one message in it, Retry is
// called when certificates change, and Rerouted a few times per second at most. Its
// methods do not block and may be called from any goroutine.
type mailbox struct {
	ready chan struct{} // capacity 1: there may be something to take

	mu       sync.Mutex
	messages []func()
	closed   bool
}

// post leaves a message, and reports whether it will be read.
func (b *mailbox) post(message func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.messages = append(b.messages, message)
	b.wake()
	return true
}

// wake makes the loop look again, also at its sessions.
func (b *mailbox) wake() { wait.Signal(b.ready) }

// take returns the messages so far.
func (b *mailbox) take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages := b.messages
	b.messages = nil
	return messages
}

// close refuses further messages and returns the last ones.
func (b *mailbox) close() []func() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.take()
}
