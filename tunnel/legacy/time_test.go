package legacy

import (
	"errors"
	"net"
	"sync"
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
