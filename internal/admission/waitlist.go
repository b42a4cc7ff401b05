package admission

import (
	"cmp"
	"container/heap"
	"container/list"
	"math/bits"
	"net/netip"
	"time"
)

// waitList holds the connections that wait, each with a weight, and says which has
// to go next. It has no lock and does nothing to the connections.
type waitList struct {
	groups  map[kind]*group
	classes [maxClass + 1]struct {
		heap   groupHeap // the heaviest first
		count  int
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

// group holds the connections of one kind. It exists as long as it has any.
type group struct {
	kind   kind
	list   list.List // of *Slot, the longest waiting first
	weight int64
	at     int // in the heap
}

func (l *waitList) add(s *Slot, from netip.Prefix, weight int64) {
	k := kind{from, classOf(weight)}
	g := l.groups[k]
	if g == nil {
		if l.groups == nil {
			l.groups = make(map[kind]*group)
		}
		g = &group{kind: k}
		l.groups[k] = g
		heap.Push(&l.classes[k.class].heap, g)
	}
	s.group, s.weight, s.since = g, weight, time.Now()
	s.element = g.list.PushBack(s)
	l.count++
	l.classes[k.class].count++
	l.shift(g, weight)
}

func (l *waitList) remove(s *Slot) {
	g := s.group
	g.list.Remove(s.element)
	s.group, s.element = nil, nil
	l.count--
	l.classes[g.kind.class].count--
	l.shift(g, -s.weight)
	if g.list.Len() == 0 {
		heap.Remove(&l.classes[g.kind.class].heap, g.at)
		delete(l.groups, g.kind)
	}
}

// weigh gives s a new weight. If that makes it one of another kind, its waiting
// time starts anew.
func (l *waitList) weigh(s *Slot, weight int64) {
	if k := s.group.kind; k.class != classOf(weight) {
		l.remove(s)
		l.add(s, k.source, weight)
		return
	}
	more := weight - s.weight
	s.weight = weight
	l.shift(s.group, more)
}

// renew starts the waiting time of s anew.
func (l *waitList) renew(s *Slot) {
	s.since = time.Now()
	s.group.list.MoveToBack(s.element)
	heap.Fix(&l.classes[s.group.kind.class].heap, s.group.at)
}

func (l *waitList) shift(g *group, weight int64) {
	l.weight += weight
	g.weight += weight
	class := &l.classes[g.kind.class]
	class.weight += weight
	heap.Fix(&class.heap, g.at)
}

// next returns the connection that has to go when there is no room: in the
// class with most connections, or with most weight if byWeight is set, and there
// from the source of most weight (of equal ones, of most connections) the
// one that has waited longest. The class comes first so that a flood from many
// addresses loses connections of its own kind, and not the one peer that has
// come farther than all of them. nil: none waits.
func (l *waitList) next(byWeight bool) *Slot {
	most := &l.classes[0]
	for i := range l.classes {
		c := &l.classes[i]
		more := cmp.Compare(c.weight, most.weight)
		if !byWeight {
			more = cmp.Or(cmp.Compare(c.count, most.count), more)
		}
		if more > 0 {
			most = c
		}
	}
	if len(most.heap) == 0 {
		return nil
	}
	return most.heap[0].first()
}

func (g *group) first() *Slot {
	if front := g.list.Front(); front != nil {
		return front.Value.(*Slot)
	}
	return nil
}

// groupHeap implements heap.Interface.
type groupHeap []*group

func (h groupHeap) Len() int { return len(h) }

func (h groupHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.weight != b.weight {
		return a.weight > b.weight
	}
	if a.list.Len() != b.list.Len() { // idle connections weigh nothing
		return a.list.Len() > b.list.Len()
	}
	first, second := a.first(), b.first()
	return first != nil && second != nil && first.since.Before(second.since)
}

func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.at = len(*h)
	*h = append(*h, g)
}

func (h *groupHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}
