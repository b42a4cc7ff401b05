package server

import (
	"context"
	"runtime"
	"sync"
	"time"

	"konnectivity/tunnel"
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

// turns let tenants that dial at the same time have equal parts of the
// processors, and so the clients of one. One that is alone is never held up.
type turns struct {
	mu       sync.Mutex
	schedule schedule
}

func newTurns() *turns {
	return &turns{schedule: schedule{limit: dialsPerCPU * runtime.GOMAXPROCS(0)}}
}

// wait returns when it is the client's turn to dial, or with ctx's cause. done
// must be called when the dial has ended.
func (t *turns) wait(ctx context.Context, who *tunnel.Client) (done func(), err error) {
	t.mu.Lock()
	l := t.schedule.line(who, time.Now())
	turn := t.schedule.enter(l)
	t.mu.Unlock()
	if turn != nil {
		select {
		case <-turn:
		case <-ctx.Done():
			t.giveUp(l, turn)
			return nil, context.Cause(ctx)
		}
	}
	aged := sync.OnceFunc(func() { t.aged(l) })
	timer := time.AfterFunc(youngFor, aged)
	return func() {
		timer.Stop()
		aged()
	}, nil
}

// aged counts a dial as young no more, and lets the next ones go.
func (t *turns) aged(l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.schedule.aged(l)
}

// giveUp takes a dial out of its line. One whose turn came just then passes it
// on.
func (t *turns) giveUp(l *line, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.schedule.leave(l, turn) {
		t.schedule.aged(l)
	}
}
