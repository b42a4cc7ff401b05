package admission

import (
	"net/netip"
	"sync"
)

// Turns bounds how many compute at once for peers that are yet to prove
// themselves, so that a flood of handshakes leaves processors to all else. Its
// methods may be called from any goroutine.
type Turns struct {
	mu      sync.Mutex
	free    int
	waiting Rotation[*Turn]
}

// Turn is one peer's, and is used only by Turns. The zero value has none.
type Turn struct {
	from netip.Prefix
	at   Place     // nil: it does not wait
	told chan bool // made by one that waits; gets one value
	left bool      // for good
}

// NewTurns returns Turns for n at once.
func NewTurns(n int) *Turns { return &Turns{free: n} }

// Take returns when t may compute, or false once it has left. A turn that was
// taken is to be given back by Give.
func (s *Turns) Take(t *Turn, from netip.Prefix) bool {
	s.mu.Lock()
	switch {
	case t.left:
		s.mu.Unlock()
		return false
	case s.free > 0: // nobody waits
		s.free--
		s.mu.Unlock()
		return true
	}
	t.from, t.told = from, make(chan bool, 1)
	t.at = s.waiting.Add(from, t)
	s.mu.Unlock()
	return <-t.told
}

// Give passes a turn on.
func (s *Turns) Give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.Empty() {
		s.free++
		return
	}
	s.tell(s.waiting.First(), true)
}

// Leave has t wait no more, now and later: it is gone.
func (s *Turns) Leave(t *Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.left = true; t.at != nil {
		s.tell(t, false)
	}
}

func (s *Turns) tell(t *Turn, turn bool) {
	s.waiting.Remove(t.from, t.at)
	t.at = nil
	t.told <- turn
}
