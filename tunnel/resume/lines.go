package resume

import (
	"cmp"
	"container/heap"
	"time"

	"konnectivity/tunnel"
)

const (
	// atOnce is how many connections of one agent are resumed at a time, at first.
	// Each that succeeds and took longTry, since the way is long, allows one more;
	// one that fails puts an end to that. One that was not even asked for says
	// nothing of the way.
	atOnce  = 64
	longTry = 10 * time.Millisecond

	// maxAtOnce is how many connections of a process are resumed at a time. So many
	// have 65,536 back within a window where the round trip takes 200 ms.
	maxAtOnce = 512
)

// waiter is a connection that waits to be resumed.
type waiter struct {
	c    *Conn
	used tunnel.Moment
}

// lines are the connections that wait to be resumed, those of each agent in a line
// of their own: while one is away, tries for its connections are slow and in vain.
// Whose agent has the fewest tries under way is next, and in a line who was used
// last. The zero value is empty. Manager.mu guards it.
type lines struct {
	of    map[string]*line // by route
	ready lineHeap         // those whose first may be tried
}

type line struct {
	route   string
	waiting waiters
	trying  int // how many are under way
	room    int // how many may be
	place   int // among the ready; -1: not there
}

// add has a connection wait.
func (s *lines) add(route string, w waiter) {
	l := s.of[route]
	if l == nil {
		if s.of == nil {
			s.of = make(map[string]*line)
		}
		l = &line{route: route, room: atOnce, place: -1}
		s.of[route] = l
	}
	heap.Push(&l.waiting, w)
	s.moved(l)
}

// outcome is what became of a connection whose turn it was to be resumed.
type outcome uint8

const (
	untried   outcome = iota // nothing was asked of anybody
	failed                   // and it is to be tried again
	succeeded                // it goes on, or is over
)

// next takes out the connection to be tried now, of whose end l is to be told by
// tried; nil: none is.
func (s *lines) next() (*Conn, *line) {
	if len(s.ready) == 0 {
		return nil, nil
	}
	l := s.ready[0]
	w := heap.Pop(&l.waiting).(waiter)
	l.trying++
	s.moved(l)
	return w.c, l
}

// tried takes in how a try ended, and how long it took.
func (s *lines) tried(l *line, how outcome, took time.Duration) {
	l.trying--
	switch {
	case how == failed:
		l.room = atOnce
	case how == succeeded && took >= longTry:
		l.room = min(l.room+1, maxAtOnce)
	}
	s.moved(l)
}

// moved puts l where it belongs after it has changed.
func (s *lines) moved(l *line) {
	switch ready := len(l.waiting) > 0 && l.trying < l.room; {
	case ready && l.place < 0:
		heap.Push(&s.ready, l)
	case ready:
		heap.Fix(&s.ready, l.place)
	case l.place >= 0:
		heap.Remove(&s.ready, l.place)
	}
	if len(l.waiting) == 0 && l.trying == 0 {
		delete(s.of, l.route)
	}
}

// waiters is a heap, whose first was used last.
type waiters []waiter

func (h waiters) Len() int           { return len(h) }
func (h waiters) Less(i, j int) bool { return h[i].used > h[j].used }
func (h waiters) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *waiters) Push(x any)        { *h = append(*h, x.(waiter)) }
func (h *waiters) Pop() any          { return pop((*[]waiter)(h)) }

// lineHeap is a heap, whose first is next.
type lineHeap []*line

func (h lineHeap) Len() int { return len(h) }

func (h lineHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.trying, b.trying), cmp.Compare(b.waiting[0].used, a.waiting[0].used)) < 0
}

func (h lineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *lineHeap) Push(x any) {
	l := x.(*line)
	l.place = len(*h)
	*h = append(*h, l)
}

func (h *lineHeap) Pop() any {
	l := pop((*[]*line)(h))
	l.place = -1
	return l
}

// pop takes the last of s out, and leaves nothing of it behind.
func pop[T any](s *[]T) (last T) {
	end := len(*s) - 1
	last, (*s)[end] = (*s)[end], last
	*s = (*s)[:end]
	return last
}
