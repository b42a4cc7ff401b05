package admission

import (
	"container/heap"
	"container/list"
	"math/bits"
	"net/netip"
	"time"
)

// line holds the connections that wait, each with a weight, and knows which has
// to go next. It has no lock and does nothing to the connections.
type line struct {
	by      map[kind]*party
	classes [maxClass + 1]struct {
		heap   parties // the heaviest first
		weight int64
	}
	count  int
	weight int64
}

// kind groups the connections that compete with each other: those of one source
// that cost about the same. A flood consists of thousands of connections that
// have all come equally far, as far as an attacker can or will go. A genuine
// peer behind the same address soon comes farther, and is then of another kind.
type kind struct {
	source netip.Prefix
	class  int
}

// classOf returns the class of a weight. Each class begins at twice the weight
// of the one before.
func classOf(weight int64) int { return min(bits.Len64(uint64(weight)/classUnit), maxClass) }

const (
	classUnit = 4 << 10 // less than any connection costs
	maxClass  = 16      // for 128 MiB and more, which no connection costs
)

// party holds the connections of one kind, and goes with the last of them.
type party struct {
	kind   kind
	line   list.List // of *Slot, the longest waiting first
	weight int64
	at     int // in the heap
}

func (l *line) add(s *Slot, from netip.Prefix, weight int64) {
	k := kind{from, classOf(weight)}
	p := l.by[k]
	if p == nil {
		if l.by == nil {
			l.by = make(map[kind]*party)
		}
		p = &party{kind: k}
		l.by[k] = p
		heap.Push(&l.classes[k.class].heap, p)
	}
	s.party, s.weight, s.since = p, weight, time.Now()
	s.place = p.line.PushBack(s)
	l.count++
	l.shift(p, weight)
}

func (l *line) remove(s *Slot) {
	p := s.party
	p.line.Remove(s.place)
	s.party, s.place = nil, nil
	l.count--
	l.shift(p, -s.weight)
	if p.line.Len() == 0 {
		heap.Remove(&l.classes[p.kind.class].heap, p.at)
		delete(l.by, p.kind)
	}
}

// weigh gives s a new weight. If that makes it one of another kind, its waiting
// time starts anew.
func (l *line) weigh(s *Slot, weight int64) {
	if k := s.party.kind; k.class != classOf(weight) {
		l.remove(s)
		l.add(s, k.source, weight)
		return
	}
	more := weight - s.weight
	s.weight = weight
	l.shift(s.party, more)
}

// renew starts the waiting time of s anew.
func (l *line) renew(s *Slot) {
	s.since = time.Now()
	s.party.line.MoveToBack(s.place)
	heap.Fix(&l.classes[s.party.kind.class].heap, s.party.at)
}

func (l *line) shift(p *party, weight int64) {
	l.weight += weight
	p.weight += weight
	class := &l.classes[p.kind.class]
	class.weight += weight
	heap.Fix(&class.heap, p.at)
}

// next returns the connection that has to go when there is no room: in the
// class that weighs most, and there from the source that weighs most, the one
// that has waited longest. The class comes first so that a flood from many
// addresses loses connections of its own kind, and not the one peer that has
// come farther than all of them. nil: nobody waits.
func (l *line) next() *Slot {
	most := &l.classes[0]
	for i := range l.classes {
		if c := &l.classes[i]; c.weight > most.weight || len(most.heap) == 0 {
			most = c
		}
	}
	if len(most.heap) == 0 {
		return nil
	}
	return most.heap[0].first()
}

func (p *party) first() *Slot {
	if front := p.line.Front(); front != nil {
		return front.Value.(*Slot)
	}
	return nil
}

// parties implements heap.Interface.
type parties []*party

func (h parties) Len() int { return len(h) }

func (h parties) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.weight != b.weight {
		return a.weight > b.weight
	}
	first, second := a.first(), b.first()
	return first != nil && second != nil && first.since.Before(second.since)
}

func (h parties) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *parties) Push(x any) {
	p := x.(*party)
	p.at = len(*h)
	*h = append(*h, p)
}

func (h *parties) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}
