package admission

import (
	"net/netip"
	"sync"
)

// onward is how many turns in a row go to those who have had one before, while
// others wait for their first: as many as a handshake takes from its first to
// its end, so that no more are begun than are ended.
const onward = 3

// Turns bounds how many peers that have yet to prove themselves are computed
// for at once, so that a flood of handshakes leaves processors to all else.
// What was begun is ended before more is begun: a peer that waits for its first
// turn costs little, one that waits for its next holds what the first has made.
// Its methods may be called from any goroutine.
type Turns struct {
	mu    sync.Mutex
	free  int
	lines [2]Rotation[*Turn] // of those who wait for their first, and of the others
	row   int                // of turns of the others since the last first one
}

// Turn is one peer's, and is used only by Turns. The zero value has none.
type Turn struct {
	from netip.Prefix
	line int       // that it is to wait in: 1 once it has had a turn
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
		t.line = 1
		s.mu.Unlock()
		return true
	}
	t.from, t.told = from, make(chan bool, 1)
	t.at = s.lines[t.line].Add(from, t)
	s.mu.Unlock()
	return <-t.told
}

// Give passes a turn on.
func (s *Turns) Give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, others := &s.lines[0], &s.lines[1]
	switch {
	case !others.Empty() && (first.Empty() || s.row < onward):
		s.row++
		s.tell(others.First(), true)
	case !first.Empty():
		s.row = 0
		s.tell(first.First(), true)
	default:
		s.free++
	}
}

// Leave ends the wait of t, whose peer is gone, now and later.
func (s *Turns) Leave(t *Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.left = true; t.at != nil {
		s.tell(t, false)
	}
}

func (s *Turns) tell(t *Turn, turn bool) {
	s.lines[t.line].Remove(t.from, t.at)
	t.at, t.line = nil, 1
	t.told <- turn
}
