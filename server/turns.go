package server

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// youngFor is how long a dial counts as work after it was let go. What the
	// server and an agent do for it is done in less; then it waits for its
	// destination, which costs nobody anything.
	youngFor = 3 * time.Millisecond

	// dialsPerCPU is how many young dials there are for each processor while
	// clients compete: enough to keep it busy, few enough that a client that
	// comes with one does not stand behind hundreds of another's.
	dialsPerCPU = 4

	// competesFor is how long a client counts as one that dials after its last.
	competesFor = time.Second
)

// turns let clients that dial at the same time have equal parts of the
// processors. One that is alone is never held up.
type turns struct {
	limit int

	mu       sync.Mutex
	lines    map[*account]*line // of clients that dialed of late
	young    int                // of all lines
	waiting  int                // in all lines
	reviewed time.Time          // when those that no longer compete were last struck out
}

// line is one client's dials.
type line struct {
	young   int
	waiting []chan struct{} // closed when it is their turn; first come, first served
	last    time.Time
}

func newTurns() *turns {
	return &turns{limit: dialsPerCPU * runtime.GOMAXPROCS(0), lines: make(map[*account]*line)}
}

// wait returns when it is the client's turn to dial, or with ctx's cause. done
// must be called when the dial has ended.
func (t *turns) wait(ctx context.Context, who *account) (done func(), err error) {
	t.mu.Lock()
	l := t.line(who)
	if len(l.waiting) > 0 || !t.mayGo(l) {
		turn := make(chan struct{})
		l.waiting = append(l.waiting, turn)
		t.waiting++
		t.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			t.giveUp(l, turn)
			return nil, context.Cause(ctx)
		}
	} else {
		l.young++
		t.young++
		t.mu.Unlock()
	}
	aged := sync.OnceFunc(func() { t.aged(l) })
	timer := time.AfterFunc(youngFor, aged)
	return func() {
		timer.Stop()
		aged()
	}, nil
}

// line is who's, which is noted to compete.
func (t *turns) line(who *account) *line {
	now := time.Now()
	if now.Sub(t.reviewed) > competesFor/4 {
		t.reviewed = now
		for other, l := range t.lines {
			if now.Sub(l.last) > competesFor && l.young == 0 && len(l.waiting) == 0 {
				delete(t.lines, other)
			}
		}
	}
	l := t.lines[who]
	if l == nil {
		l = &line{}
		t.lines[who] = l
	}
	l.last = now
	return l
}

// part is how many young dials each client may have.
func (t *turns) part() int {
	if n := len(t.lines); n > 1 {
		return max(1, t.limit/n)
	}
	return int(^uint(0) >> 1)
}

// mayGo says whether a client's next dial is not to wait: it has not had its
// part, or nobody else makes use of theirs.
func (t *turns) mayGo(l *line) bool { return l.young < t.part() || t.young < t.limit }

// aged counts a dial as young no more, and lets the next ones go.
func (t *turns) aged(l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.young--
	t.young--
	for next := t.next(); next != nil; next = t.next() {
		close(next.waiting[0])
		next.waiting = next.waiting[1:]
		t.waiting--
		next.young++
		t.young++
	}
}

// next is the line whose turn it is, the one with the fewest young; nil: nobody
// waits, or all have their parts.
func (t *turns) next() *line {
	if t.waiting == 0 {
		return nil
	}
	var next *line
	for _, l := range t.lines {
		if len(l.waiting) > 0 && t.mayGo(l) && (next == nil || l.young < next.young) {
			next = l
		}
	}
	return next
}

// giveUp takes a dial out of its line. One whose turn came just then passes it
// on.
func (t *turns) giveUp(l *line, turn chan struct{}) {
	t.mu.Lock()
	for i, other := range l.waiting {
		if other == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			t.waiting--
			t.mu.Unlock()
			return
		}
	}
	t.mu.Unlock()
	t.aged(l)
}
