package legacy

import (
	"errors"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func newTestSender(to Segment, send func(m any) error) *sender {
	limits := Limits{}.withDefaults()
	return newSender(send, to, &limits, NoMetrics{})
}

func newTestSendQueue(s *sender, id int64) *sendQueue {
	q := &sendQueue{}
	q.init(s, id)
	return q
}

// Connections take turns: one with much to send does not hold up another.
func TestConnectionsTakeTurns(t *testing.T) {
	var order []int64
	s := newTestSender(ToAgent, func(m any) error {
		if d, ok := m.(*dataMessage); ok {
			order = append(order, d.id)
		}
		return nil
	})
	bulk, small, other := newTestSendQueue(s, 1), newTestSendQueue(s, 2), newTestSendQueue(s, 3)
	_ = other.put(tunnel.CopyChunk([]byte("x")))
	for range 7 {
		testutil.NoError(t, bulk.put(tunnel.NewChunk(tunnel.RecordRoom)))
	}
	_ = small.put(tunnel.CopyChunk([]byte("x")))
	s.finish()
	s.run()
	testutil.NoError(t, s.failure())
	for i, id := range order {
		if id != 1 && i > 2 {
			t.Errorf("a small one came after %d chunks", i)
		}
	}
	if used := s.budget.Used(); len(order) != 9 || used != 0 {
		t.Errorf("sent %v, %d bytes held", order, used)
	}
}

func TestRetractedDialIsNotSent(t *testing.T) {
	s := newTestSender(ToAgent, nil)
	p := dialRequest(1, "tcp", "a:1")
	s.ask(p)
	if !s.retract(p) || s.retract(p) || len(s.control) != 0 {
		t.Error("it can be taken back once")
	}
}

// Whoever is about to go says so, however much waits to be sent: dials are let wait, too.
func TestDrainIsToldBehindManyDials(t *testing.T) {
	s := newTestSender(ToAgent, nil)
	for i := range maxReplies {
		s.ask(dialRequest(int64(i), "tcp", "a:1"))
	}
	(&AgentPeer{mux: &mux{sender: s}}).Drain()
	(&AgentSession{acceptor: acceptor{mux: &mux{sender: s}}}).Drain()
	if n := len(s.control) - maxReplies; n != 2 {
		t.Errorf("%d of 2 are told", n)
	}
}

func TestFailedStreamLosesNoBudget(t *testing.T) {
	broken := errors.New("broken")
	s := newTestSender(ToAgent, func(any) error { return broken })
	q := newTestSendQueue(s, 1)
	_ = q.put(tunnel.NewChunk(4000))
	_ = q.put(tunnel.NewChunk(4000))
	s.run()
	if err := s.failure(); err != broken {
		t.Fatal(err)
	}
	q.fail(broken)
	if err := q.put(tunnel.NewChunk(10)); err != broken {
		t.Errorf("put: %v", err)
	}
	if used := s.budget.Used(); used != 0 {
		t.Errorf("%d bytes are lost", used)
	}
}

// A peer that floods with packets about unknown connections, and does not
// read, goes unanswered instead of filling the memory.
func TestRepliesAreCapped(t *testing.T) {
	var s *sender
	for to, most := range map[Segment]int{FromAgent: 1024, ToClient: 16, ToAgent: 1024} {
		s = newTestSender(to, nil)
		for range 10 * maxReplies {
			s.reply(closeRequest(1))
		}
		if n := len(s.control); n != most {
			t.Errorf("%v: %d replies wait, want %d", to, n, most)
		}
	}
	asked := 0
	for s.ask(drain()) {
		asked++
	}
	if len(s.control) != maxControl || asked == 0 {
		t.Errorf("%d control packets wait, want %d", len(s.control), maxControl)
	}
}
