package agent

import "sync"

// news tells all that wait. Any goroutine may use it.
type news struct {
	mu      sync.Mutex
	waiting chan struct{} // closed by tell; nil: no call of wait since the last tell
}

// wait returns a channel that is closed by the next call of tell.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = make(chan struct{})
	}
	return n.waiting
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting != nil {
		close(n.waiting)
		n.waiting = nil
	}
}
