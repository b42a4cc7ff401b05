package limits

import (
	"context"
	"runtime"
	"sync"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

const (
	// youngFor is how long a dial counts as work. The server and an agent need less for
	// it; then it waits for its destination, which costs no processor time.
	youngFor = 3 * time.Millisecond

	// dialsPerCPU is how many dials may be that young for each processor while
	// clients compete: enough to keep it busy, few enough that a client that
	// comes with one does not stand behind hundreds of another's.
	dialsPerCPU = 4

	// competesFor is how long a client counts as one that dials after its last.
	competesFor = time.Second
)

// turns give tenants that dial at the same time equal parts of the processors, and
// so the clients of one. One that is alone never waits.
type turns struct {
	mu    sync.Mutex
	queue *shares.Queue[string, *tunnel.Client]
}

func newTurns() *turns { return newTurnsOf(dialsPerCPU * runtime.GOMAXPROCS(0)) }

func newTurnsOf(limit int) *turns {
	return &turns{queue: shares.NewQueue[string, *tunnel.Client](limit, competesFor)}
}

// wait returns when it is the client's turn to dial, or with ctx's cause. done
// must be called when the dial has ended.
func (t *turns) wait(ctx context.Context, who *tunnel.Client) (done func(), err error) {
	t.mu.Lock()
	m := t.queue.Member(who.Tenant, who, time.Now())
	turn := t.queue.Enter(m)
	t.mu.Unlock()
	if turn != nil {
		select {
		case <-turn:
		case <-ctx.Done():
			t.giveUp(m, turn)
			return nil, context.Cause(ctx)
		}
	}
	aged := sync.OnceFunc(func() { t.aged(m) })
	timer := time.AfterFunc(youngFor, aged)
	return func() {
		timer.Stop()
		aged()
	}, nil
}

// aged counts a dial as work no more, and lets the next ones go.
func (t *turns) aged(m *shares.Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue.Done(m)
}

// giveUp removes a dial from the queue. One whose turn came just then passes it on.
func (t *turns) giveUp(m *shares.Member, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.queue.Leave(m, turn) {
		t.queue.Done(m)
	}
}
