package legacy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
)

// wire is a mux over nothing.
type wire struct {
	*mux
	wg sync.WaitGroup
}

func newWire(limits Limits) *wire {
	metrics, log := orNothing(nil, nil)
	w := &wire{mux: newMux(func(any) error { return nil }, FromAgent, ToAgent, limits.withDefaults(), metrics, log)}
	w.wg.Go(func() { _ = w.sender.run() })
	return w
}

func (w *wire) end() {
	w.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
	w.wg.Wait()
}

func (w *wire) opener() *conn {
	c := newOpener(w.mux, 1, 1, false, "a:1")
	_, _ = w.add(1, c)
	return c
}

func chunks(n, size int) []tunnel.Chunk {
	var out []tunnel.Chunk
	for range n {
		out = append(out, tunnel.NewChunk(size))
	}
	return out
}

// A relay that is stuck in a write to a client that reads nothing hears all the
// same that the agent is gone. The end of a connection is no such thing.
func TestLossPassesAStalledDestination(t *testing.T) {
	for name, c := range map[string]struct {
		play func(w *wire, c *conn)
		want tunnel.Code
	}{
		"agent lost":     {func(w *wire, _ *conn) { w.lose(&tunnel.ResetError{Code: tunnel.CodeLost}) }, tunnel.CodeLost},
		"reset":          {func(_ *wire, c *conn) { c.peerResets(&tunnel.ResetError{Code: tunnel.CodePeerReset}) }, tunnel.CodePeerReset},
		"ended in order": {func(_ *wire, c *conn) { c.peerEnds() }, tunnel.CodeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(Limits{})
				defer w.end()
				conn := w.opener()
				near, client := net.Pipe()
				defer client.Close()
				relay := &tunnel.Relay{A: tunnel.Wrap(near), B: conn}
				ended := make(chan error, 1)
				go func() { ended <- relay.Run(t.Context()) }()
				conn.receive(chunks(1, 16<<10))
				synctest.Wait() // the relay is stuck
				c.play(w, conn)
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case err := <-ended:
					if c.want == tunnel.CodeUnknown || tunnel.CodeOf(err) != c.want {
						t.Errorf("the relay ended with %v", err)
					}
				default:
					if c.want != tunnel.CodeUnknown {
						t.Error("the relay goes on")
					}
					client.Close()
					<-ended
				}
			})
		})
	}
}

// With half-close, CLOSE_REQ is only half of it. When the other half does not
// come after Close, the agent is told to drop the connection.
func testQueue(limits Limits) (*recvQueue, *atomic.Int64) {
	limits = limits.withDefaults()
	q := &recvQueue{limits: &limits, metrics: NoMetrics{}}
	q.init()
	stalls := &atomic.Int64{}
	q.onStall = func() { stalls.Add(1) }
	return q, stalls
}

func TestFullQueueStallsOnlyWhenItsReaderDoesNotMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stalls := testQueue(Limits{connBuffer: 32 << 10})
		defer q.fail(io.EOF)
		q.put(chunks(4, 16<<10))
		for range 10 { // reads a little, and is full all the while
			time.Sleep(defaultStallTimeout * 9 / 10)
			_, _ = q.read(make([]byte, 100))
		}
		synctest.Wait()
		if stalls.Load() != 0 {
			t.Fatal("a reader that moves was taken for stalled")
		}
		time.Sleep(2*defaultStallTimeout + time.Second)
		synctest.Wait()
		if stalls.Load() != 1 {
			t.Errorf("stalled %d times, want once", stalls.Load())
		}
	})
}

// A look that is due while the queue is emptied, and comes once it is full again, takes
// nobody for stalled.
func TestLateLookAtAQueueThatIsFullAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stalls := testQueue(Limits{connBuffer: 32 << 10})
		defer q.fail(io.EOF)
		q.put(chunks(4, 16<<10))
		q.mu.Lock()
		time.Sleep(defaultStallTimeout) // the look waits for the lock
		taken, held := make([]tunnel.Chunk, 4), q.waiting.Held()
		n := q.waiting.Take(taken)
		tunnel.ReleaseAll(taken[:n])
		q.took(held)
		for _, c := range chunks(4, 16<<10) {
			q.waiting.Push(c)
		}
		q.limits.Budget.Hold(q.waiting.Held())
		q.noteFull()
		q.mu.Unlock()
		synctest.Wait()
		if n != 4 || stalls.Load() != 0 {
			t.Errorf("taken for stalled %d times, after %d chunks", stalls.Load(), n)
		}
	})
}

func TestStandingQueueBelowItsBoundNeverStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stalls := testQueue(Limits{})
		defer q.fail(io.EOF)
		q.put(chunks(4, 16<<10))
		time.Sleep(time.Hour)
		synctest.Wait()
		if stalls.Load() != 0 {
			t.Error("an unread connection that is not full was reset")
		}
	})
}

// A reader that does not move costs the stream one pause, and memory is
// bounded; once it moves the stream waits for it again.
func TestPausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := testQueue(Limits{connBuffer: 32 << 10, Budget: NewBudget(1 << 20)})
		defer q.fail(io.EOF)
		start := time.Now()
		n := 0
		for ; q.put(chunks(1, 8<<10)); n++ {
		}
		if took := time.Since(start); took != maxPause {
			t.Errorf("the stream paused for %v, want %v", took, maxPause)
		}
		if used := q.limits.Budget.Used(); used > 512<<10 || n < 20 {
			t.Errorf("%d packets and %d bytes were held", n, used)
		}
		time.Sleep(time.Second)
		_, _ = q.read(make([]byte, 1))
		start = time.Now()
		q.put(chunks(1, 8<<10))
		if took := time.Since(start); took != maxPause {
			t.Errorf("for a reader that moves the stream paused %v, want %v", took, maxPause)
		}
	})
}

// Many that stall together cost their neighbours one pause, not one each.
func TestPausesOfManyDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{connBuffer: 32 << 10, Budget: NewBudget(1 << 20)}
		var all []*recvQueue
		start := time.Now()
		for range 5 {
			q, _ := testQueue(limits)
			defer q.fail(io.EOF)
			q.put(chunks(5, 8<<10)) // full
			all = append(all, q)
		}
		for _, q := range all {
			for q.put(chunks(1, 8<<10)) {
			}
		}
		if took := time.Since(start); took != maxPause {
			t.Errorf("the stream paused for %v in all, want %v", took, maxPause)
		}
	})
}

// A reader in jerks of almost maxPause is waited for, whatever is behind it.
func TestReaderInJerksIsNeverReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stalls := testQueue(Limits{connBuffer: 32 << 10, Budget: NewBudget(1 << 20)})
		var reader sync.WaitGroup
		defer reader.Wait()
		defer q.fail(io.EOF)
		reader.Go(func() {
			for {
				time.Sleep(maxPause * 9 / 10)
				if _, err := q.take(make([]tunnel.Chunk, 8)); err != nil {
					return
				}
			}
		})
		for i := range 400 {
			if !q.put(chunks(1, 8<<10)) {
				t.Fatalf("reset at packet %d", i)
			}
		}
		if stalls.Load() != 0 {
			t.Error("taken for stalled")
		}
	})
}

// Where a client's memory is gone, a reader that takes nothing costs its
// neighbours one pause too, and not one a message.
func TestPausesWithoutMemoryDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := testQueue(Limits{connBuffer: 256 << 10, Budget: NewBudget(1)})
		defer q.fail(io.EOF)
		start, n := time.Now(), 0
		for q.put(chunks(1, 4<<10)) {
			n++
		}
		if took := time.Since(start); took != maxPause || n == 0 || n > 2*lastBuffer/(4<<10) {
			t.Errorf("the stream paused for %v in all over %d messages, want %v", took, n, maxPause)
		}
	})
}

// A message for a reader that keeps up passes, however large and however little
// memory there is.
func TestOneMessageAlwaysPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := testQueue(Limits{connBuffer: 256 << 10, Budget: NewBudget(1)})
		defer q.fail(io.EOF)
		start := time.Now()
		for range 3 {
			if !q.put(chunks(1, 60<<10)) {
				t.Fatal("refused")
			}
			if _, err := q.take(make([]tunnel.Chunk, 8)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("paused for %v", took)
		}
	})
}

func TestPauseEndsAsSoonAsThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := testQueue(Limits{connBuffer: 40 << 10, Budget: NewBudget(1)})
		defer q.fail(io.EOF)
		q.put(chunks(2, 16<<10))
		time.AfterFunc(5*time.Millisecond, func() { _, _ = q.take(make([]tunnel.Chunk, 2)) })
		start := time.Now()
		if !q.put(chunks(1, 16<<10)) {
			t.Error("refused")
		}
		if took := time.Since(start); took != 5*time.Millisecond {
			t.Errorf("paused for %v", took)
		}
	})
}

func TestSmallPacketsShareTheirBlocks(t *testing.T) {
	q, _ := testQueue(Limits{})
	var want []byte
	for i := range 1000 {
		c := tunnel.CopyChunk([]byte{byte(i), byte(i >> 8)})
		want = append(want, c.Bytes()...)
		q.put([]tunnel.Chunk{c})
	}
	if used := q.limits.Budget.Used(); used > 8<<10 {
		t.Errorf("2000 bytes pin %d", used)
	}
	var got []byte
	buf := make([]byte, 7)
	for len(got) < 1000 {
		n, err := q.read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
		q.put([]tunnel.Chunk{tunnel.CopyChunk([]byte{'+'})}) // between reads
		want = append(want, '+')
	}
	q.finish(io.EOF)
	for {
		n, err := q.read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
	}
	if string(got) != string(want) {
		t.Error("bytes differ")
	}
	if q.limits.Budget.Used() != 0 {
		t.Error("the budget is not given back")
	}
}

// The sender's turns: a connection with much to send does not hold up another.
func TestConnectionsTakeTurns(t *testing.T) {
	gate := make(chan struct{})
	var order []int64
	metrics, _ := orNothing(nil, nil)
	limits := Limits{}.withDefaults()
	s := newSender(func(m any) error {
		<-gate
		if d, ok := m.(*dataMessage); ok {
			order = append(order, d.id)
		}
		return nil
	}, ToAgent, &limits, metrics)
	bulk, small, other := &sendQueue{}, &sendQueue{}, &sendQueue{}
	bulk.init(s, 1)
	small.init(s, 2)
	other.init(s, 3)
	_ = other.put(tunnel.CopyChunk([]byte("x")))
	for range 7 {
		if err := bulk.put(tunnel.NewChunk(tunnel.RecordRoom)); err != nil {
			t.Fatal(err)
		}
	}
	_ = small.put(tunnel.CopyChunk([]byte("x")))
	done := make(chan error)
	go func() { done <- s.run() }()
	close(gate)
	s.finish()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, id := range order {
		if id != 1 && i > 2 {
			t.Errorf("a small one came after %d chunks", i)
		}
	}
	if len(order) != 9 || limits.Budget.Used() != 0 {
		t.Errorf("sent %v, %d bytes held", order, limits.Budget.Used())
	}
}

func TestRetractedDialIsNotSent(t *testing.T) {
	metrics, _ := orNothing(nil, nil)
	limits := Limits{}.withDefaults()
	s := newSender(nil, ToAgent, &limits, metrics)
	p := dialRequest(1, "tcp", "a:1")
	s.ask(p)
	if !s.retract(p) || s.retract(p) || len(s.control) != 0 {
		t.Error("it can be taken back once")
	}
}

func TestFailedStreamLosesNoBudget(t *testing.T) {
	metrics, _ := orNothing(nil, nil)
	limits := Limits{}.withDefaults()
	broken := errors.New("broken")
	s := newSender(func(any) error { return broken }, ToAgent, &limits, metrics)
	q := &sendQueue{}
	q.init(s, 1)
	_ = q.put(tunnel.NewChunk(4000))
	_ = q.put(tunnel.NewChunk(4000))
	if err := s.run(); err != broken {
		t.Fatal(err)
	}
	q.fail(broken)
	if err := q.put(tunnel.NewChunk(10)); err != broken {
		t.Errorf("put: %v", err)
	}
	if limits.Budget.Used() != 0 {
		t.Errorf("%d bytes are lost", limits.Budget.Used())
	}
}

// What stands around a connection does not hide it from who hastens it.
func TestHastenReachesAConnThatIsWrapped(t *testing.T) {
	w := newWire(Limits{})
	defer w.end()
	c := w.opener()
	hasten(tunnel.With(c, tunnel.Parts{}))
	if !c.end.hasty {
		t.Error("it is not hasty")
	}
}
