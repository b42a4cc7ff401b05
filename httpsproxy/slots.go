package httpsproxy

import (
	"container/list"
	"sync"
	"time"
)

const (
	// warnEvery keeps a flood of refused connections from flooding the log too.
	warnEvery = time.Minute

	// drainHandshake is how long a client that has just connected may take to
	// send its request once Serve was asked to end.
	drainHandshake = time.Second
)

// slots bounds how many connections are open. When they run out, the one that
// has waited longest for a request gives way, so silent connections cannot keep
// others out, however many there are.
type slots struct {
	max int

	mu      sync.Mutex
	open    int
	waiting list.List // of *client without a request, the longest waiting first
	warned  time.Time
}

// take gives c a slot, or says that there is none; warn asks for a log line.
func (s *slots) take(c *client) (ok, warn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.max && !s.evict() {
		if warn = time.Since(s.warned) > warnEvery; warn {
			s.warned = time.Now()
		}
		return false, warn
	}
	s.open++
	c.waiting = s.waiting.PushBack(c)
	return true, false
}

// makeRoom evicts one connection when another resource than slots ran out.
func (s *slots) makeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.evict()
}

func (s *slots) evict() bool {
	oldest := s.waiting.Front()
	if oldest == nil {
		return false
	}
	c := oldest.Value.(*client)
	s.forget(c)
	c.evicted = true
	s.open--
	c.abandon()
	return true
}

// busy notes that c has a request; false means that c was evicted.
func (s *slots) busy(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
	c.served = true
	return !c.evicted
}

// idle notes that c waits for its next request; false means that it need not.
func (s *slots) idle(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.evicted || c.leaving() {
		return false
	}
	c.waiting = s.waiting.PushBack(c)
	return true
}

// release gives c's slot back, unless it lost it before, and says which. It is
// called once for every slot taken.
func (s *slots) release(c *client) (evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
	if !c.evicted {
		s.open--
	}
	return c.evicted
}

func (s *slots) forget(c *client) {
	if c.waiting != nil {
		s.waiting.Remove(c.waiting)
		c.waiting = nil
	}
}

// dismiss closes what waits for a request among those that leave with leave:
// the connections that have had one already or, if fresh, the others.
func (s *slots) dismiss(leave <-chan struct{}, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.waiting.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*client); c.leave == leave && c.served != fresh {
			_ = c.Conn.Close()
		}
	}
}
