package socks5

import (
	"container/list"
	"sync"
	"time"
)

// warnEvery keeps a flood of refused connections from flooding the log too.
const warnEvery = time.Minute

// evictAge is how long a handshake is left alone when descriptors run out. The
// accept loop comes back until then, so nobody in earnest loses his connection
// to a passing shortage.
const evictAge = time.Second

// slots bounds how many connections are open. When they run out it takes the
// slot of the connection that has been in its handshake for longest, so silent
// connections cannot keep others out, however many there are.
type slots struct {
	max int

	mu      sync.Mutex
	open    int
	pending list.List // of *client, oldest first
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
	c.pending = s.pending.PushBack(c)
	return true, false
}

// makeRoom evicts a connection whose handshake is older than evictAge, when
// something else than slots ran out, and says whether there was one.
func (s *slots) makeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.pending.Front()
	return oldest != nil && time.Since(oldest.Value.(*client).since) >= evictAge && s.evict()
}

// evict takes the slot of the oldest handshake, if there is one. s.mu is held.
func (s *slots) evict() bool {
	oldest := s.pending.Front()
	if oldest == nil {
		return false
	}
	c := s.pending.Remove(oldest).(*client)
	c.pending, c.evicted = nil, true
	s.open--
	abandon(c.conn)
	return true
}

// count is how many slots are taken.
func (s *slots) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// settle notes that c's handshake is over; false means that c was evicted.
func (s *slots) settle(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
	return !c.evicted
}

// release gives c's slot back; it is called once for every slot taken.
func (s *slots) release(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
	if !c.evicted {
		s.open--
	}
}

func (s *slots) forget(c *client) {
	if c.pending != nil {
		s.pending.Remove(c.pending)
		c.pending = nil
	}
}

// hurry leaves every unfinished handshake no more than drainHandshake.
func (s *slots) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	deadline := time.Now().Add(drainHandshake)
	for e := s.pending.Front(); e != nil; e = e.Next() {
		_ = e.Value.(*client).conn.SetDeadline(deadline)
	}
}
