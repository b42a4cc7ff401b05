package link

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A stream that has ended takes memory while it waits to be acknowledged, if it is
// joined to another, and gives it back once.
func TestEndedStreamHoldsMemory(t *testing.T) {
	b, joint := NewBudget(1<<20), new(Stream)
	for name, c := range map[string]struct {
		carrier carrier
		waits   bool
		held    int64
	}{
		"of a connection that ends with it": {carrier{joint: joint}, false, 0},
		"acknowledged":                      {carrier{outlived: true, ends: endBoth, joint: joint}, false, 0},
		"acknowledged one way":              {carrier{outlived: true, ends: endIn, joint: joint}, true, endedMemory},
		"at an end":                         {carrier{outlived: true}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			st := &Stream{budget: b, carrier: c.carrier}
			testutil.Equal(t, st.awaitsAcksLocked(), c.waits, "it waits")
			testutil.Equal(t, b.Used(), c.held, "bytes held")
			st.carrier.releaseMemory(b)
			st.carrier.releaseMemory(b)
			testutil.Equal(t, b.Used(), 0, "bytes held after it is closed")
		})
	}
}

// offWire returns an open stream of a connection that outlives it, on a link of a server to a
// server that sends nothing.
func offWire() *Stream {
	ses := newSession(nil, Config{}, true)
	ses.sender.writer, ses.servers = writerDead, true
	st := newStream(ses, 1, nil)
	st.state, st.carrier.outlived = open, true
	ses.streams.add(st)
	return st
}

// What comes on one stream is passed on to the other, whether it came before Join or comes after.
func TestJoinedStreamsShareTheirFate(t *testing.T) {
	const far = 20 << 10
	testutil.Each(t, map[string]bool{"before": true, "after": false}, func(t *testing.T, before bool) {
		a, b, over, left := offWire(), offWire(), offWire(), offWire()
		cause := &tunnel.ResetError{Code: tunnel.CodeMemory}
		over.state = halfClosedRemote
		if !before {
			Join(a, b)
			Join(over, left)
		}
		r := frameReader{ses: a.ses}
		a.ses.mu.Lock()
		r.handleAckUnlocked(a, Ack{Offset: 7, Big: true})
		r.handleCreditUnlocked(a, far)
		testutil.NoError(t, r.handleMoveUnlocked(header{typ: frameMove, stream: 1}))
		a.ses.mu.Unlock()
		over.ses.mu.Lock()
		over.loseLocked(cause)
		over.ses.mu.Unlock()
		if before {
			Join(a, b)
			Join(over, left)
		}
		over.ses.wg.Wait()
		testutil.Equal(t, b.send.out.ack, Ack{Offset: 7, Big: true}, "the acknowledgement")
		testutil.Equal(t, b.recv.credit.bound, far+lead, "what the peer may send")
		testutil.Equal(t, b.send.out.move && !a.send.out.move, true, "it is asked to move, and the other is not")
		testutil.Equal(t, left.carrier.behind.Code, cause.Code, "what it is reset with once it has ended")
		testutil.Equal(t, over.carrier.behind == nil, true, "nothing comes back")
	})
}

// A stream whose window has grown is not bound by what the other may send any more.
func TestJoinedStreamOutgrowsItsBound(t *testing.T) {
	a, b := offWire(), offWire()
	Join(a, b)
	r := frameReader{ses: a.ses}
	a.ses.mu.Lock()
	defer a.ses.mu.Unlock()
	r.handleCreditUnlocked(a, 1)
	testutil.Equal(t, a.carrier.free, false, "it was outgrown at once")
	b.recv.credit.window = 2 * initialWindow
	r.handleCreditUnlocked(a, 2)
	testutil.Equal(t, a.carrier.free, true, "it was outgrown")
}

// An acknowledgement that comes while an earlier one is passed on waits for that: the last
// that is sent counts.
func TestAcknowledgementsKeepTheirOrder(t *testing.T) {
	a, b := offWire(), offWire()
	a.carrier.early = &Ack{Offset: 1}
	b.ses.mu.Lock() // the first waits here
	joined, came := make(chan struct{}), make(chan struct{})
	go func() { Join(a, b); close(joined) }()
	testutil.Eventually(t, "the first is passed on", func() bool {
		a.ses.mu.Lock()
		defer a.ses.mu.Unlock()
		return a.carrier.early == nil
	})
	go func() {
		a.ses.mu.Lock()
		(&frameReader{ses: a.ses}).handleAckUnlocked(a, Ack{Offset: 2})
		a.ses.mu.Unlock()
		close(came)
	}()
	testutil.Receive(t, "the second, while the first waits", came)
	b.ses.mu.Unlock()
	<-joined
	testutil.Equal(t, b.send.out.ack.Offset, 2, "what was acknowledged last")
}

// A reset that is passed on behind the end of a direction is waited for as the link is closed, as
// any other.
func TestResetsThatArePassedOnAreWaitedFor(t *testing.T) {
	st := offWire()
	st.state = halfClosedLocal
	testutil.Equal(t, st.ses.unread(time.Now()), 0, "the wait without a reset")
	st.resetBehind(&tunnel.ResetError{Code: tunnel.CodeGone})
	testutil.Equal(t, st.ses.unread(time.Now()), farewell, "the wait")
}
