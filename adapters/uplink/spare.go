package uplink

import (
	"sync"
	"time"
)

// spareTime is how long a connection that turned out to be to an old server
// waits for the request that wanted it.
const spareTime = 5 * time.Second

// spare is room for one connection to an old server that no request uses yet. The
// zero value is empty. Its methods may be called from any goroutine.
type spare struct {
	mu      sync.Mutex
	closed  bool
	waiting *waiting // nil: none
}

// waiting is a connection in a spare.
type waiting struct {
	handshaken
	timer *time.Timer
}

// keep takes h over: until it is taken or its time is over.
func (s *spare) keep(h handshaken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.waiting != nil {
		_ = h.NetConn().Close()
		return
	}
	w := &waiting{handshaken: h}
	w.timer = time.AfterFunc(spareTime, func() { s.drop(w) })
	s.waiting = w
}

// take hands out what is there.
func (s *spare) take() (handshaken, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting
	if w == nil || !w.timer.Stop() {
		return handshaken{}, false
	}
	s.waiting = nil
	w.spare = true
	return w.handshaken, true
}

func (s *spare) drop(w *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == w {
		s.waiting = nil
	}
	_ = w.NetConn().Close()
}

// close closes what is there, and what is still to come.
func (s *spare) close() {
	s.mu.Lock()
	w := s.waiting
	s.closed = true
	s.mu.Unlock()
	if w != nil && w.timer.Stop() {
		s.drop(w)
	}
}
