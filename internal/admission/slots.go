package admission

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// EvictAge is how long a connection may wait undisturbed when descriptors run
// out. Until then the accept loop retries, so no genuine client loses its
// connection to a short shortage.
const EvictAge = time.Second

// strictFor is how long after an eviction those that wait may weigh Bytes only,
// and not Burst. A flood evicts all the time; many connections at once that are
// genuine are through their handshakes long before.
const strictFor = 10 * time.Second

// Holder is a connection that takes a slot: a type that embeds Slot.
type Holder interface {
	slot() *Slot
	// Abandon ends the connection without an answer. Only the newcomer that
	// took its slot waits for this.
	Abandon()
}

// Slot is a Holder's state in Slots, and is used only by Slots.
type Slot struct {
	holder  Holder
	source  netip.Prefix
	group   *group        // of waiting connections; nil while it is served
	element *list.Element // in its group
	weight  int64         // in bytes, of one that waits
	since   time.Time     // it waits
	evicted bool          // it lost its slot to a newer one
}

func (s *Slot) slot() *Slot { return s }

// Limits bounds what connections may hold; 0 means no limit.
type Limits struct {
	Open    int   // connections at once, whether they wait or are served
	Served  int   // those of them that are served
	Waiting int   // those of them that wait
	Bytes   int64 // total weight of those that wait, in a flood
	Burst   int64 // what it may be before it counts as one; less than Bytes: Bytes
	Each    int64 // weight of a newcomer
}

// Slots limits the number of open connections, and the cost of those that wait for
// their handshake or their next request. When there is no more room, it evicts the
// longest waiting one from the largest group, by number or by cost: connections of one
// source that cost about the same. So neither silent connections, however many there
// are, nor those of a flood, whatever they send, can keep others out. Its methods may be
// called from any goroutine.
type Slots[H Holder] struct {
	limits Limits

	mu      sync.Mutex
	open    int
	waiting waitList
	crowded time.Time // of the last eviction
	lost    []Holder  // that have been evicted, and not yet abandoned

	taken, unserved rarely // lines of the log, about refusals of Take and of Serve
}

// NewSlots has room for what limits say.
func NewSlots[H Holder](limits Limits) *Slots[H] { return &Slots[H]{limits: limits} }

// Take gives h, which waits and comes from an address, a slot, or says that
// there is none; warn asks for a log line, once a minute.
func (s *Slots[H]) Take(h H, from net.Addr) (ok, warn bool) {
	s.mu.Lock()
	defer s.unlock()
	for !s.room() {
		if s.evict() {
			continue
		}
		return false, s.taken.due()
	}
	s.open++
	slot := h.slot()
	slot.holder, slot.source = h, SourceOf(from)
	s.waiting.add(slot, slot.source, s.limits.Each)
	return true, false
}

// Warn reports whether a connection that Serve refused is worth a log line, once a minute.
func (s *Slots[H]) Warn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unserved.due()
}

// room reports whether there is room for one more.
func (s *Slots[H]) room() bool {
	l := &s.limits
	return (l.Open == 0 || s.open < l.Open) && (l.Waiting == 0 || s.waiting.count < l.Waiting) &&
		s.bears(s.waiting.weight+l.Each)
}

// bears reports whether those that wait may weigh that much together.
func (s *Slots[H]) bears(bytes int64) bool {
	if s.limits.Bytes == 0 || bytes <= s.limits.Bytes {
		return true
	}
	return bytes <= s.limits.Burst && time.Since(s.crowded) > strictFor
}

// Weigh records what h costs if it waits, which may evict others or itself. A
// connection that costs much more than before has made progress, so it waits as
// if it had just arrived.
func (s *Slots[H]) Weigh(h H, bytes int64) {
	s.mu.Lock()
	defer s.unlock()
	if h.slot().group == nil {
		return
	}
	s.waiting.weigh(h.slot(), bytes)
	for !s.bears(s.waiting.weight) && s.evict() {
	}
}

// Move records that h comes from another address than its connection, which a
// load balancer made on its behalf. h waits as if it had just arrived.
func (s *Slots[H]) Move(h H, from net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := h.slot()
	slot.source = SourceOf(from)
	if slot.group != nil {
		weight := slot.weight
		s.waiting.remove(slot)
		s.waiting.add(slot, slot.source, weight)
	}
}

// Renew makes h, which has made progress in its handshake, wait as if it had
// just arrived; false means that it was evicted.
func (s *Slots[H]) Renew(h H) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.slot().group != nil {
		s.waiting.renew(h.slot())
	}
	return !h.slot().evicted
}

// MakeRoom evicts a connection that has waited for EvictAge, when something
// other than slots ran out, and reports whether there was one.
func (s *Slots[H]) MakeRoom() bool {
	s.mu.Lock()
	defer s.unlock()
	next := s.next()
	return next != nil && time.Since(next.since) >= EvictAge && s.evict()
}

// Why a connection is not served.
var (
	ErrEvicted = errors.New("it lost its slot to a newer connection")
	ErrFull    = errors.New("as many connections are served as may be")
)

// Serve records that h no longer waits. It returns ErrEvicted if h was evicted,
// and ErrFull if there is no room for it among those that are served: h goes on
// waiting, so that it can be told.
func (s *Slots[H]) Serve(h H) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch served := s.open - s.waiting.count; {
	case h.slot().evicted:
		return ErrEvicted
	case h.slot().group != nil && s.limits.Served != 0 && served >= s.limits.Served:
		return ErrFull
	}
	s.forget(h)
	return nil
}

// Await makes h wait again, for its next request, unless it was evicted or
// unless returns true, which is called under the lock of Waiting. It reports
// whether h waits. h weighs nothing from then on: it has shown that it is
// genuine, and Open bounds it.
func (s *Slots[H]) Await(h H, unless func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := h.slot()
	if slot.evicted || unless() {
		return false
	}
	s.waiting.add(slot, slot.source, 0)
	return true
}

// Evicted reports whether h lost its slot.
func (s *Slots[H]) Evicted(h H) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.slot().evicted
}

// Release returns h's slot, unless h lost it before, and reports whether h did.
// It is called once for every slot taken.
func (s *Slots[H]) Release(h H) (evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(h)
	if !h.slot().evicted {
		s.open--
	}
	return h.slot().evicted
}

// Waiting calls each for every holder that waits. each must neither block nor
// call Slots.
func (s *Slots[H]) Waiting(each func(H)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.waiting.groups {
		for e := g.list.Front(); e != nil; e = e.Next() {
			each(e.Value.(*Slot).holder.(H))
		}
	}
}

// Count returns how many slots are taken.
func (s *Slots[H]) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Held returns how many holders wait and what they weigh.
func (s *Slots[H]) Held() (waiting int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.count, s.waiting.weight
}

// next returns the connection that is next to go. As long as the weight is bearable, each
// counts as much as any other, so that newcomers take the place of idle connections, which
// weigh nothing, and not of each other.
func (s *Slots[H]) next() *Slot { return s.waiting.next(!s.bears(s.waiting.weight + s.limits.Each)) }

// evict takes the slot of the connection that is next to go, if there is one. The
// caller must release the lock by unlock.
func (s *Slots[H]) evict() bool {
	next := s.next()
	if next == nil {
		return false
	}
	s.waiting.remove(next)
	next.evicted = true
	s.crowded = time.Now()
	s.open--
	s.lost = append(s.lost, next.holder)
	return true
}

// unlock releases the lock and then abandons the evicted connections: closing one
// may take long, and must not hold up others.
func (s *Slots[H]) unlock() {
	lost := s.lost
	s.lost = nil
	s.mu.Unlock()
	for _, h := range lost {
		h.Abandon()
	}
}

func (s *Slots[H]) forget(h H) {
	if slot := h.slot(); slot.group != nil {
		s.waiting.remove(slot)
	}
}
