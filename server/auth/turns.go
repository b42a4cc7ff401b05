package auth

import (
	"container/list"
	"net/netip"
	"time"
)

// rank is how likely a token is worth the review it asks for; the lower, the
// likelier. It decides who is reviewed first, never who is refused: that is the
// review's to say.
type rank int

const (
	// proven tokens have been accepted before, or bear a signature of one of
	// the API's own keys. Nobody outside the cluster can make one.
	proven rank = iota
	// plausible ones say what the agents' tokens have to say. Anybody can.
	plausible
	// suspect ones are plausible, but a bad one that was plausible too came from
	// the same source a while ago.
	suspect
	// doubtful is every other token.
	doubtful
	ranks
)

// precedence is the order in which ranks are looked at, turn by turn: the best
// first, with one turn of eight kept for each of the others, so that a busy
// rank delays the next one and never shuts it out.
var precedence = [8][ranks]rank{
	2: {plausible, proven, suspect, doubtful},
	5: {suspect, proven, plausible, doubtful},
	7: {doubtful, proven, plausible, suspect},
	0: inOrder, 1: inOrder, 3: inOrder, 4: inOrder, 6: inOrder,
}

var inOrder = [ranks]rank{proven, plausible, suspect, doubtful}

// mostRunning is how many reviews of a rank may be under way at once. An API
// that takes long over bad tokens (a webhook that is asked about opaque ones)
// must leave room for the good.
var mostRunning = [ranks]int{proven: 128, plausible: 64, suspect: 32, doubtful: 32}

// waiter is a token that waits for its turn.
type waiter struct {
	rank rank
	from netip.Prefix // where it came from
	told chan bool    // holds one: true for a turn, false for none
	at   *list.Element
}

func newWaiter(r rank, from netip.Prefix) *waiter {
	return &waiter{rank: r, from: from, told: make(chan bool, 1)}
}

// turns says who is reviewed next: at most one every interval, with a burst in
// advance; by rank; within a rank by source, in rotation, so that a source that
// floods waits for itself; within a source first come, first served. It has
// neither lock nor clock.
type turns struct {
	every time.Duration
	burst int
	most  int // that may wait

	due     time.Time // when the next turn would be, were there no burst
	given   int
	lanes   [ranks]lane
	waiting int
	running [ranks]int
}

// lane holds those of one rank that wait.
type lane struct {
	lines map[netip.Prefix]*list.Element // by source; of order
	order list.List                      // of *list.List, the line whose turn it is in front
}

func newTurns(perSecond float64, burst int) *turns {
	t := &turns{
		every: time.Duration(float64(time.Second) / perSecond),
		burst: burst,
		// Who stands further back would be told to come again in any case.
		most: burst + int(perSecond*ReviewTimeout.Seconds()),
	}
	for r := range t.lanes {
		t.lanes[r].lines = make(map[netip.Prefix]*list.Element)
	}
	return t
}

// add takes w in. Where that is one too many it returns the one to turn away,
// which may be w: of the least rank, the last of the longest line.
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

// leave takes out one that waits.
func (t *turns) leave(w *waiter) {
	t.lanes[w.rank].remove(w)
	t.waiting--
}

// next gives a turn to the one it returns, whose review runs until done. With
// nobody to give it to it returns nil, and if that is only for want of time,
// how long it takes until there is a turn.
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

// done ends the review of one that had its turn.
func (t *turns) done(r rank) { t.running[r]-- }

func (l *lane) add(w *waiter) {
	line := l.lines[w.from]
	if line == nil {
		line = l.order.PushBack(list.New())
		l.lines[w.from] = line
	}
	w.at = line.Value.(*list.List).PushBack(w)
}

// remove takes w out; its source keeps its place in the rotation.
func (l *lane) remove(w *waiter) {
	line := l.lines[w.from]
	if line.Value.(*list.List).Remove(w.at); line.Value.(*list.List).Len() == 0 {
		l.order.Remove(line)
		delete(l.lines, w.from)
	}
}

// first is whose turn it is. Its source goes to the end of the rotation.
func (l *lane) first() *waiter {
	front := l.order.Front()
	l.order.MoveToBack(front)
	return front.Value.(*list.List).Front().Value.(*waiter)
}

// last is the last of the longest line, among equals of the one whose turn is
// furthest off; nil where nobody waits.
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
