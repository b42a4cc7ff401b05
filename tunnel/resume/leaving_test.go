package resume

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
