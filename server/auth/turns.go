package auth

import (
	"container/list"
	"net/netip"
	"time"
)

// rank says how likely a token is worth its review; the lower, the likelier. It
// decides who is reviewed first, never who is refused: only the review decides
// that.
type rank int

const (
	// proven tokens have been accepted before, or have a signature of one of
	// the API's own keys. Nobody outside the cluster can make one.
	proven rank = iota
	// plausible tokens claim what agents' tokens must. Anybody can make one.
	plausible
	// suspect tokens are plausible, but a plausible token from the same source
	// recently turned out bad.
	suspect
	// doubtful tokens are all others.
	doubtful
	ranks
)

// precedence is the order in which ranks are considered, turn by turn: the best
// first, with one turn of eight reserved for each of the others, so that a busy
// rank delays the next but never shuts it out.
var precedence = [8][ranks]rank{
	2: {plausible, proven, suspect, doubtful},
	5: {suspect, proven, plausible, doubtful},
	7: {doubtful, proven, plausible, suspect},
	0: inOrder, 1: inOrder, 3: inOrder, 4: inOrder, 6: inOrder,
}

var inOrder = [ranks]rank{proven, plausible, suspect, doubtful}

// mostRunning is how many reviews of a rank may be in progress at once. An API
// that takes long over bad tokens (a webhook that is asked about opaque ones)
// must leave room for the good.
var mostRunning = [ranks]int{proven: 128, plausible: 64, suspect: 32, doubtful: 32}

// waiter is a token that waits for its turn.
type waiter struct {
	rank rank
	from netip.Prefix // its source
	told chan bool    // gets one value: true for a turn, false for none
	at   *list.Element
}

func newWaiter(r rank, from netip.Prefix) *waiter {
	return &waiter{rank: r, from: from, told: make(chan bool, 1)}
}

// turns decides who is reviewed next: at most one in every interval, plus a
// burst; by rank; within a rank by source, in rotation, so that a flood delays
// only its own source; within a source first come, first served. It has neither
// a lock nor a clock.
type turns struct {
	every time.Duration
	burst int
	most  int // that may wait

	due     time.Time // when the next turn would be without the burst
	given   int
	lanes   [ranks]lane
	waiting int
	running [ranks]int
}

// lane holds the waiters of one rank.
type lane struct {
	lines map[netip.Prefix]*list.Element // by source; of order
	order list.List                      // of *list.List; the line whose turn it is comes first
}

func newTurns(perSecond float64, burst int) *turns {
	t := &turns{
		every: time.Duration(float64(time.Second) / perSecond),
		burst: burst,
		// Anybody further back would be asked to retry in any case.
		most: burst + int(perSecond*reviewTimeout.Seconds()),
	}
	for r := range t.lanes {
		t.lanes[r].lines = make(map[netip.Prefix]*list.Element)
	}
	return t
}

// add adds w. If that is one too many it returns the waiter to turn away, which
// may be w: in the worst rank, the last of the longest line.
func (t *turns) add(w *waiter) (away *waiter) {
	t.lanes[w.rank].add(w)
	t.waiting++
	if t.waiting <= t.most {
		return nil
	}
	for r := ranks - 1; ; r-- {
		if away = t.lanes[r].last(); away != nil {
			t.leave(away)
			return away
		}
	}
}

// leave removes a waiter.
func (t *turns) leave(w *waiter) {
	t.lanes[w.rank].remove(w)
	t.waiting--
}

// next gives a turn to the waiter it returns, whose review runs until done is
// called. If there is none it returns nil and, if only time is missing, how
// long it takes until the next turn.
func (t *turns) next(now time.Time) (*waiter, time.Duration) {
	for _, r := range precedence[t.given%len(precedence)] {
		if t.running[r] >= mostRunning[r] || t.lanes[r].order.Len() == 0 {
			continue
		}
		if early := t.due.Add(-time.Duration(t.burst-1) * t.every).Sub(now); early > 0 {
			return nil, early
		}
		w := t.lanes[r].first()
		t.leave(w)
		t.spend(now)
		t.given++
		t.running[r]++
		return w, 0
	}
	return nil, 0
}

// spend uses up a turn.
func (t *turns) spend(now time.Time) {
	if t.due.Before(now) {
		t.due = now
	}
	t.due = t.due.Add(t.every)
}

// done ends a review that had its turn.
func (t *turns) done(r rank) { t.running[r]-- }

func (l *lane) add(w *waiter) {
	line := l.lines[w.from]
	if line == nil {
		line = l.order.PushBack(list.New())
		l.lines[w.from] = line
	}
	w.at = line.Value.(*list.List).PushBack(w)
}

// remove removes w; its source keeps its place in the rotation.
func (l *lane) remove(w *waiter) {
	line := l.lines[w.from]
	if line.Value.(*list.List).Remove(w.at); line.Value.(*list.List).Len() == 0 {
		l.order.Remove(line)
		delete(l.lines, w.from)
	}
}

// first returns the waiter whose turn it is, and moves its source to the end of
// the rotation.
func (l *lane) first() *waiter {
	front := l.order.Front()
	l.order.MoveToBack(front)
	return front.Value.(*list.List).Front().Value.(*waiter)
}

// last returns the last waiter of the longest line, among equals of the line
// whose turn is furthest off; nil if nobody waits.
func (l *lane) last() *waiter {
	var longest *list.List
	for line := l.order.Front(); line != nil; line = line.Next() {
		if line := line.Value.(*list.List); longest == nil || line.Len() >= longest.Len() {
			longest = line
		}
	}
	if longest == nil {
		return nil
	}
	return longest.Back().Value.(*waiter)
}
