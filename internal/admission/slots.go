package admission

import (
	"container/list"
	"sync"
	"time"
)

// EvictAge is how long a connection that waits is left alone when descriptors
// run out. The accept loop comes back until then, so nobody in earnest loses
// his connection to a passing shortage.
const EvictAge = time.Second

// Holder is a connection that takes a slot: a type that embeds Slot.
type Holder interface {
	slot() *Slot
	// Abandon ends the connection without a word. It must not block.
	Abandon()
}

// Slot is a Holder's part in Slots, which alone uses it.
type Slot struct {
	waiting *list.Element // in Slots.waiting; nil while it is served
	since   time.Time     // it waits
	evicted bool          // it lost its slot to a newer one
}

func (s *Slot) slot() *Slot { return s }

// Slots bounds how many connections are open. When they run out it takes the
// slot of the connection that has waited for longest, for its handshake or for
// a next request, so silent connections cannot keep others out, however many
// there are. Its methods may be called from any goroutine.
type Slots[H Holder] struct {
	max int

	mu      sync.Mutex
	open    int
	waiting list.List // of H, the longest waiting first
	warned  time.Time
}

// NewSlots has room for max connections.
func NewSlots[H Holder](max int) *Slots[H] { return &Slots[H]{max: max} }

// Take gives h, which waits, a slot, or says that there is none; warn asks for
// a log line, once a minute.
func (s *Slots[H]) Take(h H) (ok, warn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.max && !s.evict() {
		if warn = time.Since(s.warned) > warnEvery; warn {
			s.warned = time.Now()
		}
		return false, warn
	}
	s.open++
	s.await(h)
	return true, false
}

// MakeRoom evicts a connection that has waited for EvictAge, when something
// else than slots ran out, and says whether there was one.
func (s *Slots[H]) MakeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.waiting.Front()
	return oldest != nil && time.Since(oldest.Value.(H).slot().since) >= EvictAge && s.evict()
}

// Serve notes that h waits no more; false means that it was evicted.
func (s *Slots[H]) Serve(h H) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(h)
	return !h.slot().evicted
}

// Await notes that h waits again, for its next request, if it is to: unless it
// was evicted or unless says otherwise, which is asked under the lock of
// Waiting. It returns whether h waits.
func (s *Slots[H]) Await(h H, unless func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.slot().evicted || unless() {
		return false
	}
	s.await(h)
	return true
}

// Release gives h's slot back, unless it lost it before, and says which. It is
// called once for every slot taken.
func (s *Slots[H]) Release(h H) (evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(h)
	if !h.slot().evicted {
		s.open--
	}
	return h.slot().evicted
}

// Waiting calls each for all that wait, the longest waiting first. each must
// neither block nor call Slots.
func (s *Slots[H]) Waiting(each func(H)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.waiting.Front(); e != nil; e = e.Next() {
		each(e.Value.(H))
	}
}

// Count is how many slots are taken.
func (s *Slots[H]) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *Slots[H]) await(h H) {
	slot := h.slot()
	slot.since = time.Now()
	slot.waiting = s.waiting.PushBack(h)
}

// evict takes the slot of the longest waiting, if there is one.
func (s *Slots[H]) evict() bool {
	oldest := s.waiting.Front()
	if oldest == nil {
		return false
	}
	h := oldest.Value.(H)
	s.forget(h)
	h.slot().evicted = true
	s.open--
	h.Abandon()
	return true
}

func (s *Slots[H]) forget(h H) {
	if slot := h.slot(); slot.waiting != nil {
		s.waiting.Remove(slot.waiting)
		slot.waiting = nil
	}
}
