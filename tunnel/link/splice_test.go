package link_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// middle is a process between the ends of connections that outlive their links: the
// rig's session is toward the opener, which is raw, and c toward the acceptor's d.
func middle(t *testing.T, far tunnel.Handler, forwarder func(c *link.Session) tunnel.Handler) (r *rig, c, d *link.Session) {
	t.Helper()
	toD, fromD := net.Pipe()
	c, d = sessions(t, link.Buffered(toD), link.Buffered(fromD), link.Config{Hello: resumes}, link.Config{Hello: resumes, Handler: far})
	near, opener := net.Pipe()
	return newRig(t, link.Buffered(near), opener, true, link.Config{Hello: resumes, Handler: forwarder(c)}), c, d
}

// begin opens a connection that outlives its links.
func (r *rig) begin(id uint64) {
	r.t.Helper()
	r.send(frame{tOpen, 0, id, fields(2, "x:1", 3, u64(firstWindow), 6, make([]byte, 16), 7, []byte{0, 0, 0xea, 0x60})})
	r.wantOpened(id, 0)
}

// holder is an end that keeps the connection, and has ended its direction if it ends.
type holder struct{ ends bool }

// Serve implements tunnel.Handler.
func (h holder) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	f.Resume.Granted = tunnel.Grant{Window: time.Minute}
	near, err := answer(nowhere{}, nil)
	if err != nil {
		ended(err)
		return
	}
	if h.ends {
		_ = near.CloseWrite()
	}
	<-ctx.Done()
	ended(near.Close())
}

// A stream that is reset for its peer's breach of the protocol, after the peer's end,
// takes the connection's other stream along, as one does that the peer resets (§9).
func TestViolationAfterFINResetsTheOtherStream(t *testing.T) {
	testutil.EachInBubble(t, map[string]bool{"half-closed": false, "ended": true}, func(t *testing.T, ends bool) {
		r, c, d := middle(t, holder{ends}, func(c *link.Session) tunnel.Handler { return joinedTo(c) })
		r.begin(2)
		r.send(frame{tData, 1, 2, nil})
		if ends {
			r.wantType(tData, 2)
		}
		synctest.Wait()
		r.send(frame{tData, 0, 2, []byte("more")})
		r.wantReset(2, uint16(tunnel.CodeProtocol))
		synctest.Wait()
		testutil.Equal(t, c.Streams()+d.Streams(), 0, "streams left behind it")
		r.end()
		_, _ = c.Close(), d.Close()
	})
}

// unheard is a stream of which a relay reads nothing.
type unheard struct {
	*link.Stream
	in tunnel.Source
}

func (u unheard) In() tunnel.Source { return u.in }

// fate tells how the stream that it serves ends, which ends nothing itself.
type fate chan error

// Serve implements tunnel.Handler.
func (f fate) Serve(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	flow.Resume.Granted = tunnel.Grant{Window: time.Minute}
	near, err := answer(nowhere{}, nil)
	if err == nil {
		_, err = near.Read(make([]byte, 1))
		_ = near.Close()
	}
	f <- err
	ended(err)
}

// A client that resets a connection and ends its link has not lost it, also where it had ended
// its direction and a relay has yet to pass that on: the far end would wait for it.
func TestResetBeforeTheLinksEndGoesOn(t *testing.T) {
	testutil.EachInBubble(t, map[string]bool{"open": false, "half-closed": true}, func(t *testing.T, ends bool) {
		silence, end := net.Pipe()
		met := make(fate, 1)
		r, c, d := middle(t, met, func(c *link.Session) tunnel.Handler {
			return resume.Splice(tunnel.HandlerFunc(func(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
				(&tunnel.Forwarder{Dialer: c}).Serve(ctx, f, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
					near, err := answer(far, err)
					return unheard{near.(*link.Stream), tunnel.Wrap(silence).In()}, err
				}, ended)
			}))
		})
		r.begin(2)
		synctest.Wait() // the relay has begun
		if ends {
			r.send(frame{tData, 1, 2, []byte("bytes")})
		}
		r.send(frame{tReset, 0, 2, u16(uint16(tunnel.CodeGone))})
		synctest.Wait()
		_ = r.conn.Close()
		testutil.Equal(t, tunnel.CodeOf(<-met), tunnel.CodeGone, "what the far end is reset with")
		_ = end.Close() // or the relay would not end
		r.end()
		_, _ = c.Close(), d.Close()
	})
}

// deliverer has its stream deliver to l.
type deliverer struct {
	c *link.Session
	l *leaver
}

// Serve implements tunnel.Handler.
func (d *deliverer) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	ended(d.serve(ctx, f, answer))
}

func (d *deliverer) serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer) error {
	next, err := d.c.Dial(ctx, f)
	if err != nil {
		return err
	}
	near, err := answer(next, nil)
	if err != nil {
		return err
	}
	near.In().Deliver(d.l)
	if _, err := near.In().ReadChunks(make([]tunnel.Chunk, 1)); err != nil {
		return err
	}
	_, _ = next.Read(make([]byte, 1)) // the end
	_ = near.CloseWrite()
	<-ctx.Done()
	_, _ = near.Close(), next.Close()
	return nil
}

// What is being delivered while the stream ends, because the connection's other one
// has, is given back to the budget once.
func TestTakeDuringAResetCountsOnce(t *testing.T) {
	for _, kept := range []int{4, 10} {
		synctest.Test(t, func(t *testing.T) {
			var toD *link.Session
			l := &leaver{end: func() { _ = toD.Close() }, kept: kept, turns: make(chan struct{}, 2)}
			r, c, d := middle(t, holder{true}, func(c *link.Session) tunnel.Handler {
				toD = c
				return resume.Splice(&deliverer{c, l})
			})
			r.begin(2)
			r.wantType(tData, 2) // the end
			synctest.Wait()
			r.send(frame{tData, 0, 2, []byte("some bytes")})
			r.wantReset(2, uint16(tunnel.CodeLost))
			synctest.Wait()
			testutil.Equal(t, r.budget.Used(), 0, "bytes held, of a stream that is gone")
			testutil.Equal(t, r.ses.Stats().Unread, 0, "bytes unread of it")
			r.end()
			_, _ = c.Close(), d.Close()
		})
	}
}

// thatEnded opens n streams of connections that outlive them, and ends both of their directions.
func thatEnded(t *testing.T, by *link.Session, n int) (opened []*link.Stream) {
	t.Helper()
	for i := range n {
		f := tunnel.NewFlow("tcp", "x:1")
		f.Resume = &tunnel.Resume{Token: [16]byte{byte(i), 1}, Window: time.Minute}
		c := testutil.Must(by.Dial(t.Context(), f))(t)
		_ = c.CloseWrite()
		testutil.Must(io.Copy(io.Discard, c))(t)
		opened = append(opened, c.(*link.Stream))
	}
	return opened
}

// TestPlainConnectionsAreNeverEndedShort: bytes that wait for a destination as the link is cut
// are lost, so it is reset, also where all that ended the connection in order had come.
func TestPlainConnectionsAreNeverEndedShort(t *testing.T) {
	for name, c := range map[string]struct{ peerEnds, destEnds bool }{
		"open":                     {false, false},
		"ended by the peer":        {true, false},
		"ended by the destination": {false, true},
		"ended both ways":          {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			near, far := tcpPair(t)
			toDest, dest := tcpPair(t)
			_ = toDest.(*net.TCPConn).SetWriteBuffer(4 << 10)
			_ = dest.(*net.TCPConn).SetReadBuffer(4 << 10)
			reach := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return tunnel.Wrap(toDest), nil })
			r := newRig(t, near, far, false, link.Config{Handler: &tunnel.Forwarder{Dialer: reach}})
			r.open(1, "x:1")
			if c.destEnds {
				_ = dest.(*net.TCPConn).CloseWrite()
				r.want(frame{tData, fin, 1, nil})
			}
			sent := 0
			for range 7 {
				r.send(data(1, largestPayload))
				sent += largestPayload
			}
			if c.peerEnds {
				r.send(frame{tData, fin, 1, nil})
			}
			r.wantNothing() // all of it was read
			_ = far.Close()
			<-r.ses.Done()
			got, err := io.Copy(io.Discard, dest)
			testutil.Fails(t, err, "the destination's read of %d of %d bytes", got, sent)
			_ = dest.Close()
			_ = r.ses.Close()
		})
	}
}

// acceptor is the end of connections that outlive their streams: it ends its
// direction behind the peer's.
type acceptor struct {
	mu      sync.Mutex
	streams []*link.Stream
}

// Serve implements tunnel.Handler.
func (a *acceptor) Serve(_ context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	f.Resume.Granted = tunnel.Grant{Window: time.Minute}
	near, err := answer(nowhere{}, nil)
	if err != nil {
		ended(err)
		return
	}
	a.mu.Lock()
	a.streams = append(a.streams, near.(*link.Stream))
	a.mu.Unlock()
	_, _ = io.Copy(io.Discard, near)
	ended(near.CloseWrite())
}

// A connection that outlives its links takes its client's memory, in a process
// between its ends, until the last of it was acknowledged: one that a peer ends and
// does not acknowledge costs it as much as an open one.
func TestEndedStreamsTakeMemoryUntilAcknowledged(t *testing.T) {
	const n, each = 50, 10 << 10
	testutil.EachInBubble(t, map[string]func(opened []*link.Stream, far *acceptor, all []*link.Session){
		"acknowledged": func(opened []*link.Stream, far *acceptor, _ []*link.Session) {
			for i, st := range opened {
				st.Acknowledge(link.Ack{Offset: 1, End: true})
				far.streams[i].Acknowledge(link.Ack{Offset: 1, End: true})
			}
		},
		"reset": func(opened []*link.Stream, _ *acceptor, _ []*link.Session) {
			for _, st := range opened {
				_ = st.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
			}
		},
		"its link is lost":  func(_ []*link.Stream, _ *acceptor, all []*link.Session) { _ = all[0].Close() },
		"the other is lost": func(_ []*link.Stream, _ *acceptor, all []*link.Session) { _ = all[3].Close() },
	}, func(t *testing.T, settle func(opened []*link.Stream, far *acceptor, all []*link.Session)) {
		budget, far := link.NewBudget(64<<20), &acceptor{}
		all := between(t, resumes, budget, far, joinedTo)
		opened := thatEnded(t, all[0], n)
		time.Sleep(time.Minute)
		testutil.Equal(t, budget.Used(), n*each, "bytes of %d that have ended", n)
		settle(opened, far, all)
		synctest.Wait()
		testutil.Equal(t, budget.Used(), 0, "bytes held for nothing")
		for _, s := range all {
			_ = s.Close()
		}
	})
}

// Where a peer acknowledges nothing, memory for its clients does not run out: once it is
// scarce, connections that have ended make room, no more than it takes, and both of their ends are
// told.
func TestEndedStreamsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 50, 10 << 10
		budget, far := link.NewBudget(n*each*6/5), &acceptor{}
		all := between(t, resumes, budget, far, joinedTo)
		for _, st := range thatEnded(t, all[0], n) {
			testutil.NoError(t, st.Close())
		}
		synctest.Wait()
		testutil.Equal(t, budget.Used(), n*each, "bytes at first")
		testutil.Equal(t, budget.Scarce(), true, "memory is scarce")
		time.Sleep(time.Minute)
		kept := int(budget.Used() / each)
		testutil.Holds(t, !budget.Scarce() && kept != 0,
			"of %d connections that have ended, %d are kept", n, kept)
		for _, end := range []*link.Session{all[0], all[3]} {
			testutil.Equal(t, end.Streams(), kept, "streams at an end")
		}
		for _, s := range all {
			_ = s.Close()
		}
	})
}
