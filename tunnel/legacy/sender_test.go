package legacy

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		testutil.Holds(t, id == 1 || i <= 2, "a small one came after two chunks at most, but %d", i)
	}
	testutil.Equal(t, len(order), 9, "packets sent: %v", order)
	testutil.Equal(t, s.budget.Used(), 0, "bytes held")
}

// Only one end of a connection is sent and told, the last before it is sent, and nothing behind it.
func TestEndIsSentOnce(t *testing.T) {
	var sent []any
	told := ""
	s := newTestSender(ToAgent, func(m any) error { sent = append(sent, m); return nil })
	q, end := newTestSendQueue(s, 1), closeResponse(1, "reset")
	q.finish(closeResponse(1, ""), func() { told += "first" })
	q.finish(end, func() { told += "second" })
	testutil.ErrorIs(t, q.put(tunnel.CopyChunk([]byte("x"))), net.ErrClosed, "what is put behind it")
	s.finish()
	s.run()
	q.finish(closeResponse(1, ""), nil)
	testutil.Equal(t, q.fin == nil && len(sent) == 1 && sent[0] == any(end) && told == "second", true, "of %v, what was told is %q", sent, told)
}

func TestRetractedDialIsNotSent(t *testing.T) {
	s := newTestSender(ToAgent, nil)
	first, p := dialRequest(1, "tcp", "a:1"), dialRequest(2, "tcp", "a:1")
	s.ask(first)
	s.ask(p)
	testutil.Equal(t, s.retract(p) && !s.retract(p) && len(s.control) == 1 && s.control[0].Packet == first, true, "it can be taken back once")
}

// A connection that fails while it awaits its turn leaves nothing to be sent, and does not
// stop the others.
func TestFailedConnectionIsPassedOver(t *testing.T) {
	var sent []any
	s := newTestSender(ToAgent, func(m any) error { sent = append(sent, m); return nil })
	failed, other := newTestSendQueue(s, 1), newTestSendQueue(s, 2)
	_ = failed.put(tunnel.CopyChunk([]byte("x")))
	_ = other.put(tunnel.CopyChunk([]byte("x")))
	failed.fail(net.ErrClosed)
	s.finish()
	s.run()
	testutil.Equal(t, len(sent) == 1 && sent[0].(*dataMessage).id == 2, true, "what is sent: %v", sent)
}

// A writer that waits for room is woken by what ends its connection.
func TestWaitingWriterIsWoken(t *testing.T) {
	for name, end := range map[string]func(q *sendQueue){
		"fail": func(q *sendQueue) { q.fail(net.ErrClosed) }, "end": func(q *sendQueue) { q.end(net.ErrClosed) }, "silence": (*sendQueue).silence,
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			q := newTestSendQueue(newTestSender(ToAgent, nil), 1)
			outcome := make(chan error, 1)
			go func() {
				for q.held < 2*sendWindow && q.err == nil && !q.mute {
					if err := q.put(tunnel.NewChunk(tunnel.ChunkSize)); err != nil {
						outcome <- err
						return
					}
				}
				outcome <- nil
			}()
			synctest.Wait()
			testutil.AtMost(t, q.held, sendWindow, "bytes that wait")
			end(q)
			testutil.Equal(t, <-outcome == nil, name == "silence", "the write succeeds")
			q.fail(net.ErrClosed)
		})
	}
}

// A client that has spoken is not asked, though the reply is there before what it said is taken in.
func TestClientThatHasSpokenIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		m := newMux(func(any) error { sent++; return nil }, FromClient, ToClient, Limits{connBuffer: 1}.withDefaults(), NoMetrics{}, nil)
		c := newServer(m, 1, false, "a:1", nil)
		c.in.block = true
		testutil.NoError(t, c.announce(7))
		c.in.put([]tunnel.Chunk{tunnel.NewChunk(tunnel.ChunkSize)}) // a full queue
		var read sync.WaitGroup
		read.Go(func() { c.receive([]tunnel.Chunk{tunnel.CopyChunk([]byte("ask"))}) })
		synctest.Wait()
		_, _ = c.Write([]byte("reply"))
		_, _ = io.CopyN(io.Discard, c, tunnel.ChunkSize)
		read.Wait()
		m.sender.finish()
		m.sender.run()
		testutil.Equal(t, sent, 2, "DIAL_RSP, the reply, and questions")
		_ = c.Reset(nil)
	})
}

// What waits behind a question is sent also without an answer, in time; where it was dropped,
// the sender can end at once.
func TestQuestionHoldsUpNoSenderForEver(t *testing.T) {
	for name, drops := range map[string]bool{"no answer": false, "dropped": true} {
		testutil.Bubble(t, name, func(t *testing.T) {
			sent := 0
			m := newMux(func(any) error { sent++; return nil }, FromClient, ToClient, Limits{}.withDefaults(), NoMetrics{}, nil)
			c := newServer(m, 1, false, "a:1", nil)
			c.in.block = true
			testutil.NoError(t, c.announce(7))
			for range 2 {
				_, _ = c.Write([]byte("x"))
			}
			if drops {
				c.out.fail(net.ErrClosed)
			}
			m.sender.finish()
			start := time.Now()
			m.sender.run()
			testutil.Equal(t, time.Since(start) == answerTime, !drops, "it waits for the answer")
			testutil.Equal(t, sent == 4, !drops, "DIAL_RSP, one question and the data are sent, but %d", sent)
		})
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
	testutil.Equal(t, len(s.control)-maxReplies, 2, "peers that are told")
}

func TestFailedStreamLosesNoBudget(t *testing.T) {
	broken := errors.New("broken")
	s := newTestSender(ToAgent, func(any) error { return broken })
	q := newTestSendQueue(s, 1)
	_ = q.put(tunnel.NewChunk(4000))
	_ = q.put(tunnel.NewChunk(4000))
	s.run()
	testutil.Equal(t, s.failure(), broken, "the failure")
	q.fail(broken)
	testutil.Equal(t, q.put(tunnel.NewChunk(10)), broken, "the error of put")
	testutil.Equal(t, s.budget.Used(), 0, "bytes that are lost")
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
		testutil.Equal(t, len(s.control), most, "%v: replies that wait", to)
	}
	asked := 0
	for s.ask(drain()) {
		asked++
	}
	testutil.Equal(t, len(s.control), maxControl, "control packets that wait")
	testutil.AtLeast(t, asked, 1, "those that were asked to")
}
