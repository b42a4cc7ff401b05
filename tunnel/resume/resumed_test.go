package resume

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// leftover is a carrier that tells how it was given up.
type leftover struct {
	lean
	why error
}

func (l *leftover) Reset(why error) error { l.why = why; return nil }

func (l *leftover) Detach() { l.why = errLost }

// without is a connection that has lost its carrier, behind what before did with it: an
// acceptor's, made by of, or an opener's where that is nil.
func without(t *testing.T, e *Manager, of *dial, before func(*Conn)) *Conn {
	t.Helper()
	c := e.newConn(lean{}, time.Minute, 0, [16]byte{1}, "dest:1")
	if of == nil {
		c.token = newToken()
		c.opening = &opening{dialer: tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
	}
	testutil.NoError(t, e.add(c, of))
	c.mu.Lock()
	before(c)
	c.step(c.m.CarrierLost(0, errLost, time.Now()))
	c.mu.Unlock()
	for at := Detaching; at == Detaching || at == Draining; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		at = c.m.carrier
		c.mu.Unlock()
	}
	return c
}

// An acceptor that nobody uses any more is over where its opener is found to have taken
// all. An opener that still writes is told so, and does not take it for one more loss.
func TestResumedAfterAllWasTaken(t *testing.T) {
	e := newEnds(t)
	without(t, e, &dial{}, func(c *Conn) {
		c.settle(c.m.Close())
		c.m.Out.Next(make([]tunnel.Chunk, 1))
		c.settle(c.m.Sent())
	})
	st := &leftover{}
	r := &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, Taken: 1}
	err := e.resume(&tunnel.Flow{Request: tunnel.Request{Address: "dest:1"}, Resume: r}, func(tunnel.Conn, error) (tunnel.Conn, error) { return st, nil })
	testutil.NoError(t, err)
	testutil.Equal(t, e.Len(), 0, "connections")
	testutil.Equal(t, tunnel.CodeOf(st.why), tunnel.CodeCancelled, "what it was reset with")
}

// Close leaves nothing that waits for a carrier, nor figures of it: those of a cluster
// that is over count in its server's for ever.
func TestCloseEndsWhatHasNoCarrier(t *testing.T) {
	e := New(Options{Window: time.Minute})
	_ = without(t, e, nil, func(*Conn) {}).Reset(nil)
	c := without(t, e, nil, func(*Conn) {})
	e.Close()
	e.Wait()
	s := e.Stats()
	testutil.Equal(t, fmt.Sprint(s.Conns, s.Detached), "0 0", "connections that are left, and those without a carrier")
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Write([]byte("x")))), tunnel.CodeGone, "it writes")
}

// A peer that claims in its answer to have taken what it was not sent is told so.
func TestLieInAnAnswer(t *testing.T) {
	e := newEnds(t)
	var epoch uint32
	c := without(t, e, nil, func(*Conn) {})
	for epoch = 0; epoch == 0; time.Sleep(time.Millisecond) { // it asks
		c.mu.Lock()
		epoch = c.m.epoch
		c.mu.Unlock()
	}
	st := &leftover{}
	r := &tunnel.Resume{Epoch: epoch, Granted: tunnel.Grant{Window: time.Minute, Taken: 1}}
	if again := c.redialSucceeded(st, &tunnel.Flow{Resume: r}); again != 0 || e.Len() != 0 || tunnel.CodeOf(st.why) != tunnel.CodeProtocol {
		t.Errorf("%d connections, reset with %v", e.Len(), st.why)
	}
}

// parting is a carrier that is delivering something, and is detached once that is
// taken.
type parting struct {
	lean
	taken chan struct{}
}

func (p *parting) Detach() { <-p.taken }

// slow takes what it is offered once release is closed.
type slow struct {
	tunnel.Receiver
	release chan struct{}
}

func (s *slow) Take(c tunnel.Chunk) int {
	<-s.release
	return c.Len()
}

func (s *slow) Ready() {}

func (s *slow) Fail(error) {}

// What a carrier delivers while it is lost counts before its opener is told where to
// go on: else those bytes would come twice.
func TestResumedBehindWhatWasBeingTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, taken := make(chan struct{}), make(chan struct{})
		st := &parting{taken: taken}
		_, c := newEnd(t, st)
		c.read.app = &slow{release: release}
		go func() {
			defer close(taken)
			(&inlet{c, st, 0}).Take(tunnel.CopyChunk([]byte("abc")))
		}()
		synctest.Wait()
		watcher{c, st, 0}.Lost(errLost)
		synctest.Wait() // the loss is known, and the carrier not detached
		time.AfterFunc(time.Second, func() { close(release) })
		testutil.Equal(t, testutil.Must(c.offered(1, 0))(t), 3, "where it goes on, with 3 bytes under way")
	})
}

// Who resumes a connection and has to wait leaves the carrier, too, that came meanwhile.
func TestResumedBehindACarrierThatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newEnd(t, nil)
		c.m.carrier, c.m.sender = Draining, SenderTask // by a carrier that was left
		accepted := make(chan error)
		go func() {
			_, err := c.offered(2, 0)
			accepted <- err
		}()
		synctest.Wait()
		c.mu.Lock()
		taken := make(chan struct{})
		close(taken)
		c.settle(c.m.Sent())
		testutil.Equal(t, c.settle(c.m.Offered(1, 0, time.Now()))&Answer != 0, true, "it is resumed")
		c.st = &parting{taken: taken}
		c.do(c.settle(c.m.CarrierUp(1, 0, time.Now())))
		c.mu.Unlock()
		testutil.Succeeds(t, <-accepted, "the answer")
		testutil.Equal(t, c.st == nil, true, "it goes on without the stream")
	})
}

// eager is a carrier by which the peer has acknowledged all before anybody listened.
type eager struct{ lean }

func (eager) Watch(link.Watcher) *link.Ack { return &link.Ack{Offset: 1} }

func (eager) Close() error { return nil }

// A connection that turns out to be over as it is resumed is without a carrier no more.
func TestOverAsItIsResumed(t *testing.T) {
	e, c := newEnd(t, lean{})
	c.opening = new(opening)
	c.mu.Lock()
	c.settle(c.m.Close())
	c.m.Out.Next(make([]tunnel.Chunk, 1))
	c.settle(c.m.Sent())
	c.step(c.m.CarrierLost(0, errLost, time.Now()))
	c.m.carrier = Dialing
	a := c.settle(c.m.CarrierUp(0, 1, time.Now()))
	c.attach(eager{}, &tunnel.Flow{})
	c.do(a)
	c.mu.Unlock()
	s := e.Stats()
	testutil.Holds(t, s.Conns == 0 && s.Detached == 0 && s.Resumes == 1 && s.ByCause[tunnel.LossCut] == 1, "%+v", s)
}

// lying is a carrier by which the peer has acknowledged what it was not sent before
// anybody listened.
type lying struct {
	lean
	why error
}

func (l *lying) Watch(link.Watcher) *link.Ack { return &link.Ack{Offset: 1000} }

func (l *lying) Reset(why error) error { l.why = why; return nil }

func (l *lying) Acknowledge(link.Ack) { panic("a carrier that was reset is used") }

// A lie ends the connection, too, that comes before it is heard: at an acceptor; at an opener
// whose dial was repeated, and at an end that has taken all, which both have something to
// acknowledge at once, and no peer left.
func TestEarlyLieEndsIt(t *testing.T) {
	accepted, repeated, done := &lying{}, &lying{}, &lying{}
	e, c := newEnd(t, nil)
	flow := &tunnel.Flow{Resume: &tunnel.Resume{Token: [16]byte{2}, Window: time.Minute}}
	_, err := e.answer(flow, &dial{}, &lying{}, nil, func(tunnel.Conn, error) (tunnel.Conn, error) { return accepted, nil })
	testutil.NoError(t, err)

	asked := &tunnel.Resume{Token: [16]byte{3}, Window: time.Minute, Attempt: 1, Granted: tunnel.Grant{Window: time.Minute}}
	e.adopt(repeated, tunnel.NewFlow("tcp", "dest:1"), asked, nil)

	c.mu.Lock()
	c.m.In.Finish()
	c.m.carrier = Dialing
	a := c.settle(c.m.CarrierUp(0, 0, time.Now()))
	c.attach(done, tunnel.NewFlow("tcp", "dest:1"))
	c.do(a)
	c.mu.Unlock()
	for what, l := range map[string]*lying{"an acceptor's": accepted, "a repeated dial's": repeated, "one that has taken all": done} {
		testutil.Equal(t, tunnel.CodeOf(l.why), tunnel.CodeProtocol, "%s is reset with %v", what, l.why)
	}
	testutil.Equal(t, e.Len(), 0, "connections left")
}
