package admission

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// QueueConfig says who works next, and how much at once. Classes are numbered from
// zero.
type QueueConfig struct {
	// Precedence has, for each turn of a cycle, the classes in the order in which
	// they are considered. A turn counts if others wait for it, too.
	Precedence [][]int

	Limit   int   // work in progress at once; 0: any number
	Running []int // the same of each class; nil: any number
	Waiting int   // that may wait; 0: any number

	Every time.Duration // between two turns; 0: no time
	Burst int           // turns that may come at once nevertheless; needs Every
}

// Queue gives turns to work that waits: by class, and in a class by source in round
// robin, so that a flood delays only its own source; within a source first come,
// first served. It needs no goroutine: Wait, Leave and Done give the turns that are
// due, and a timer does if only time is missing. Its methods may be called from any
// goroutine.
type Queue struct {
	cfg QueueConfig

	mu      sync.Mutex
	classes []roundRobin
	waiting int
	running []int     // by class
	total   int       // of running
	given   int       // turns for which others waited
	due     time.Time // when the next turn would be without the burst
	armed   bool      // a timer is set
}

// Ticket is a claim to turns, one after the other. Its fields may change while it
// has none and does not wait.
type Ticket struct {
	Class  int
	Source any // comparable

	at   *list.Element // where it waits; nil: it does not
	turn chan error    // has one value when the wait is over: nil for a turn
	left bool          // for good
}

// Why there is no turn.
var (
	ErrQueueFull   = errors.New("the queue is full")
	errTicketEnded = errors.New("it has left the queue")
)

// NewQueue returns an empty Queue.
func NewQueue(cfg QueueConfig) *Queue {
	n := len(cfg.Precedence[0])
	return &Queue{cfg: cfg, classes: make([]roundRobin, n), running: make([]int, n)}
}

// Wait returns nil when it is t's turn, which ends with Done. It returns
// ErrQueueFull if others displaced t: the last ticket of the source with most, in
// the highest class. It also fails when ctx ends, and when t leaves.
func (q *Queue) Wait(ctx context.Context, t *Ticket) error {
	q.mu.Lock()
	if t.left {
		q.mu.Unlock()
		return errTicketEnded
	}
	if t.turn == nil {
		t.turn = make(chan error, 1)
	}
	if displaced := q.add(t); displaced != nil {
		displaced.turn <- ErrQueueFull
	}
	q.grant()
	q.mu.Unlock()
	select {
	case err := <-t.turn:
		return err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.at != nil {
		q.remove(t)
	} else if err := <-t.turn; err == nil { // its turn came just then
		q.finish(t)
		q.grant()
	}
	return context.Cause(ctx)
}

// Leave ends the wait of t, now and later. A turn that it has goes on.
func (q *Queue) Leave(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.left = true; t.at != nil {
		q.remove(t)
		t.turn <- errTicketEnded
	}
}

// Done ends t's turn.
func (q *Queue) Done(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finish(t)
	q.grant()
}

// Spend uses up a turn for work that does not wait for it.
func (q *Queue) Spend() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spend(time.Now())
}

// grant wakes all whose turn it is now. Callers hold mu, like those of all below.
func (q *Queue) grant() {
	for {
		t, early := q.next(time.Now())
		if t != nil {
			t.turn <- nil // has room: each wait is ended once
			continue
		}
		if early > 0 && !q.armed {
			q.armed = true
			time.AfterFunc(early, func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.armed = false
				q.grant()
			})
		}
		return
	}
}

func (q *Queue) finish(t *Ticket) {
	q.running[t.Class]--
	q.total--
}

// add makes t wait. If that is one too many it returns the ticket that is displaced.
func (q *Queue) add(t *Ticket) (displaced *Ticket) {
	t.at = q.classes[t.Class].add(t)
	q.waiting++
	if q.cfg.Waiting == 0 || q.waiting <= q.cfg.Waiting {
		return nil
	}
	for class := len(q.classes) - 1; ; class-- {
		if t := q.classes[class].last(); t != nil {
			q.remove(t)
			return t
		}
	}
}

func (q *Queue) remove(t *Ticket) {
	q.classes[t.Class].remove(t)
	t.at = nil
	q.waiting--
}

// next gives a turn to the ticket it returns. If there is none it returns nil and,
// if only time is missing, how long it takes until the next turn.
func (q *Queue) next(now time.Time) (*Ticket, time.Duration) {
	if q.cfg.Limit > 0 && q.total >= q.cfg.Limit {
		return nil, 0
	}
	for _, class := range q.cfg.Precedence[q.given%len(q.cfg.Precedence)] {
		if q.classes[class].empty() || q.cfg.Running != nil && q.running[class] >= q.cfg.Running[class] {
			continue
		}
		if early := q.due.Add(-time.Duration(q.cfg.Burst-1) * q.cfg.Every).Sub(now); q.cfg.Every > 0 && early > 0 {
			return nil, early
		}
		t := q.classes[class].first()
		q.remove(t)
		q.spend(now)
		q.running[class]++
		q.total++
		if q.waiting > 0 {
			q.given++
		}
		return t, 0
	}
	return nil, 0
}

func (q *Queue) spend(now time.Time) {
	if q.due.Before(now) {
		q.due = now
	}
	q.due = q.due.Add(q.cfg.Every)
}

// roundRobin holds the tickets of one class by source.
type roundRobin struct {
	sources map[any]*list.Element // of order
	order   list.List             // of *list.List of *Ticket; the source whose turn it is comes first
}

func (r *roundRobin) add(t *Ticket) *list.Element {
	source := r.sources[t.Source]
	if source == nil {
		if r.sources == nil {
			r.sources = make(map[any]*list.Element)
		}
		source = r.order.PushBack(list.New())
		r.sources[t.Source] = source
	}
	return source.Value.(*list.List).PushBack(t)
}

// remove removes a ticket; its source keeps its place in the order.
func (r *roundRobin) remove(t *Ticket) {
	source := r.sources[t.Source]
	if tickets := source.Value.(*list.List); tickets.Remove(t.at) != nil && tickets.Len() == 0 {
		r.order.Remove(source)
		delete(r.sources, t.Source)
	}
}

func (r *roundRobin) empty() bool { return r.order.Len() == 0 }

// first returns the ticket whose turn it is, which stays, and moves its source to
// the end of the order. There must be one.
func (r *roundRobin) first() *Ticket {
	front := r.order.Front()
	r.order.MoveToBack(front)
	return front.Value.(*list.List).Front().Value.(*Ticket)
}

// last returns the last ticket of the source with most of them, among equals of the
// one whose turn is furthest off; nil if there is none.
func (r *roundRobin) last() *Ticket {
	var longest *list.List
	for source := r.order.Front(); source != nil; source = source.Next() {
		if tickets := source.Value.(*list.List); longest == nil || tickets.Len() >= longest.Len() {
			longest = tickets
		}
	}
	if longest == nil {
		return nil
	}
	return longest.Back().Value.(*Ticket)
}
