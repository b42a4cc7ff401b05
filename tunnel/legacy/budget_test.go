package legacy

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"konnectivity/tunnel"
)

// aloneQueue is what a stream of its own receives, which nobody reads.
func aloneQueue(budget *Budget) *recvQueue {
	limits := Limits{Budget: budget}.withDefaults()
	q := &recvQueue{limits: &limits, metrics: NoMetrics{}, block: true, onStall: func() {}}
	q.init()
	return q
}

// TestStreamsOfOneClientKeepToItsShare: streams that nobody reads hold no more
// than the budget, gRPC's own windows counted; who has used it up loses the
// streams that bring more, and another client does not notice.
func TestStreamsOfOneClientKeepToItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, streams = 4 << 20, 1000
		budget := NewBudget(total)
		hog := budget.Share()
		var queues []*recvQueue
		var puts sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		for range streams {
			q := aloneQueue(hog)
			queues = append(queues, q)
			puts.Go(func() {
				for {
					if !q.put([]tunnel.Chunk{tunnel.CopyChunk(make([]byte, 8<<10))}) {
						mu.Lock()
						refused++
						mu.Unlock()
						return
					}
					if q.finished() {
						return
					}
				}
			})
			synctest.Wait()
		}
		if used := budget.Used(); used > total || used < total/2 {
			t.Errorf("%d streams hold %d bytes of %d", streams, used, total)
		}
		if refused == 0 {
			t.Error("no stream is refused")
		}
		other := aloneQueue(budget.Share())
		if !other.put([]tunnel.Chunk{tunnel.CopyChunk(make([]byte, 8<<10))}) {
			t.Error("another client's stream is refused")
		}
		for _, q := range append(queues, other) {
			q.fail(io.ErrClosedPipe)
		}
		puts.Wait()
		if used := budget.Used(); used != 0 {
			t.Errorf("%d bytes of the budget are lost", used)
		}
	})
}

// TestAReaderThatIsSlowLosesNothing: a stream waits for it, however little of
// the budget is left, and goes on.
func TestAReaderThatIsSlowLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages, size = 200, 8 << 10
		budget := NewBudget(256 << 10)
		q := aloneQueue(budget)
		var put sync.WaitGroup
		put.Go(func() {
			for range messages {
				if !q.put([]tunnel.Chunk{tunnel.CopyChunk(make([]byte, size))}) {
					t.Error("a stream with a reader is refused")
					return
				}
			}
		})
		buf := make([]byte, 1000)
		for n := 0; n < messages*size; {
			synctest.Wait() // until put waits
			m, err := q.read(buf)
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		put.Wait()
		if budget.Used() != 0 {
			t.Errorf("%d bytes of the budget are lost", budget.Used())
		}
	})
}

// TestForgottenConnectionHoldsNothing: a connection that its mux has forgotten,
// since its peer was told of the end, may still have something to send when the
// stream is lost. Its memory is given back nevertheless.
func TestForgottenConnectionHoldsNothing(t *testing.T) {
	for name, end := range map[string]func(c *conn){
		"closed, and the peer goes on": func(c *conn) {
			_ = c.Close()
			c.receive([]tunnel.Chunk{tunnel.CopyChunk([]byte("more"))})
		},
		"ended, then reset": func(c *conn) {
			_ = c.CloseWrite()
			_ = c.Reset(io.ErrUnexpectedEOF)
		},
	} {
		for duplex, kind := range map[bool]string{true: "duplex", false: "old"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limits := Limits{Budget: NewBudget(1 << 20)}.withDefaults()
				m := newMux(func(any) error { return nil }, ToAgent, FromAgent, limits, NoMetrics{}, nil)
				c := newServer(m, 1, duplex, "far:1", func(error) {})
				if err := c.announce(1); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("unsent")); err != nil { // nobody runs the sender
					t.Fatal(err)
				}
				end(c)
				m.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
				if used := limits.Budget.Used(); used != 0 {
					t.Errorf("%d bytes of the budget are lost", used)
				}
			})
		}
	}
}
