package link_test

import (
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// moved is an end that is told to move.
type moved chan struct{}

func (moved) Acked(link.Ack) {}

func (moved) Lost(error) {}

func (m moved) Move() { m <- struct{}{} }

// What carries much is asked once to move, unless its other end cannot.
func TestAskMove(t *testing.T) {
	noLeaks(t)
	near, far := tlsPair(t)
	hello := link.Hello{Features: []string{link.FeatureResume, link.FeatureLanes}}
	accepted := make(hand, 1)
	a, b := sessions(t, near, far, link.Config{Hello: hello}, link.Config{Hello: hello, Handler: granting{accepted}})
	testutil.Equal(t, a.Lanes() && b.Lanes(), true, "lanes are in use")
	open := func() (opener, acceptor *link.Stream, told moved) {
		f := tunnel.NewFlow("tcp", "example.test:80")
		f.Resume = &tunnel.Resume{Window: time.Minute}
		c := testutil.Must(a.Dial(t.Context(), f))(t)
		opener, acceptor, told = c.(*link.Stream), (<-accepted).(*link.Stream), make(moved, 4)
		opener.Watch(told)
		return opener, acceptor, told
	}

	bulkAndSmall := func() [2]int {
		bulk, small := a.Bulk(1000)
		return [2]int{len(bulk), small}
	}
	st, _, told := open()
	testutil.Equal(t, bulkAndSmall(), [2]int{0, 0}, "streams before anything was carried")
	testutil.Must(st.Write(make([]byte, 1000)))(t)
	bulk, small := a.Bulk(1000)
	testutil.EqualSlices(t, bulk, []*link.Stream{st}, "bulk")
	testutil.Equal(t, small, 0, "small ones")
	testutil.Equal(t, bulkAndSmall(), [2]int{0, 0}, "streams, as nothing was carried since")
	testutil.Must(st.Write(make([]byte, 999)))(t)
	testutil.Equal(t, bulkAndSmall(), [2]int{0, 1}, "streams, of which one is small")
	first, again := st.AskMove(), st.AskMove()
	testutil.Holds(t, first && !again && len(told) == 1, "asked %v and %v, told %d times", first, again, len(told))

	fixed, acceptor, told := open()
	acceptor.Stay()
	testutil.Must(acceptor.Write([]byte("behind it")))(t)
	testutil.Must(fixed.Read(make([]byte, 1)))(t)
	testutil.Equal(t, fixed.AskMove(), false, "what cannot move was asked to")
	testutil.Equal(t, len(told), 0, "times that it was told")
}

// An end is asked once to move, however often the peer asks, and also where it watches the
// stream only afterwards.
func TestMoveIsAskedOnce(t *testing.T) {
	r := tcpRig(t, true, link.Config{})
	for _, before := range []bool{true, false} {
		id, conn := r.dialed()
		told := make(moved, 100)
		if before {
			conn.(*link.Stream).Watch(told)
		}
		for range cap(told) {
			r.send(frame{tMove, 0, id, nil})
		}
		r.wantNothing()
		if !before {
			conn.(*link.Stream).Watch(told)
		}
		testutil.Equal(t, len(told), 1, "how often it was told, watched before: %v", before)
	}
}

// A server that asks for a connection to be moved is heard at the other stream, also where the
// two are joined only afterwards. What others ask for does not pass a process between the ends.
func TestOnlyServersMoveWhatIsJoined(t *testing.T) {
	for role, heard := range map[link.Role]bool{link.RoleServer: true, link.RoleAgent: false} {
		noLeaks(t)
		hello := link.Hello{Role: link.RoleServer, Features: []string{link.FeatureForward}}
		near, far := tcpPair(t)
		r := newRigTo(t, byte(role), near, far, true, link.Config{Hello: hello})
		nearOther, farOther := tcpPair(t)
		other := newRig(t, nearOther, farOther, true, link.Config{})
		for _, before := range []bool{true, false} {
			id, conn := r.dialed()
			otherID, toOther := other.dialed()
			join := func() { link.Join(conn.(*link.Stream), toOther.(*link.Stream)) }
			if before {
				join()
			}
			r.send(frame{tMove, 0, id, nil})
			r.wantNothing()
			if !before {
				join()
			}
			if heard {
				other.want(frame{tMove, 0, otherID, nil})
			}
			other.wantNothing()
		}
		r.end()
		other.end()
	}
}

// WakeAfter calls once, for bytes of either direction.
func TestWakeAfter(t *testing.T) {
	noLeaks(t)
	near, far := tlsPair(t)
	a, _ := sessions(t, near, far, link.Config{}, link.Config{Handler: &tunnel.Forwarder{Dialer: &destinations{}}})
	c := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
	echo := func(n int) {
		testutil.Must(c.Write(make([]byte, n)))(t)
		testutil.Must(io.ReadFull(c, make([]byte, n)))(t)
	}
	echo(1000)
	woken := make(chan struct{}, 10)
	a.WakeAfter(1000, func() { woken <- struct{}{} })
	echo(400)
	testutil.Equal(t, len(woken), 0, "calls after 800 of 1000 bytes")
	echo(100)
	<-woken
	echo(2000)
	_ = a.Close() // waits for wake
	testutil.Equal(t, len(woken), 0, "calls after the first")
}
