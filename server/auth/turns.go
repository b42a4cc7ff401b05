package auth

import (
	"net/netip"
	"time"

	"konnectivity/internal/admission"
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
	at   admission.Place
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
	lanes   [ranks]admission.Rotation[*waiter]
	waiting int
	running [ranks]int
}

func newTurns(perSecond float64, burst int) *turns {
	return &turns{
		every: time.Duration(float64(time.Second) / perSecond),
		burst: burst,
		// Anybody further back would be asked to retry in any case.
		most: burst + int(perSecond*reviewTimeout.Seconds()),
	}
}

// add adds w. If that is one too many it returns the waiter to turn away, which
// may be w: in the worst rank, the last of the longest line.
func (t *turns) add(w *waiter) (away *waiter) {
	w.at = t.lanes[w.rank].Add(w.from, w)
	t.waiting++
	if t.waiting <= t.most {
		return nil
	}
	for r := ranks - 1; ; r-- {
		if away, ok := t.lanes[r].Last(); ok {
			t.leave(away)
			return away
		}
	}
}

// leave removes a waiter.
func (t *turns) leave(w *waiter) {
	t.lanes[w.rank].Remove(w.from, w.at)
	t.waiting--
}

// next gives a turn to the waiter it returns, whose review runs until done is
// called. If there is none it returns nil and, if only time is missing, how
// long it takes until the next turn.
func (t *turns) next(now time.Time) (*waiter, time.Duration) {
	for _, r := range precedence[t.given%len(precedence)] {
		if t.running[r] >= mostRunning[r] || t.lanes[r].Empty() {
			continue
		}
		if early := t.due.Add(-time.Duration(t.burst-1) * t.every).Sub(now); early > 0 {
			return nil, early
		}
		w := t.lanes[r].First()
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
