package link_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// late is a net.Conn whose reader gets nothing while held.
type late struct {
	net.Conn
	held sync.Mutex
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.held.Lock()
	defer l.held.Unlock()
	return n, err
}

// A peer that writes all the time and reads late learns why its streams were reset: the link is
// not closed under what it has yet to read.
func TestAPeerLearnsOfResetsBeforeTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		reset func(b *link.Session, end tunnel.Conn)
		want  tunnel.Code
		stays time.Duration // the link, at the least, unless the peer has read
	}{
		"barred": {func(b *link.Session, _ tunnel.Conn) { b.Bar(tunnel.CodePolicy) }, tunnel.CodePolicy, 5 * time.Second},
		"reset": {func(_ *link.Session, end tunnel.Conn) {
			_ = end.Reset(&tunnel.ResetError{Code: tunnel.CodeGone})
		}, tunnel.CodeGone, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				if peerLearns(t, c.reset, c.want, c.stays) {
					return
				}
			}
			t.Skip("this machine is slower than a peer may be")
		})
	}
}

// peerLearns returns false if the peer took longer than the link stays.
func peerLearns(t *testing.T, reset func(*link.Session, tunnel.Conn), want tunnel.Code, stays time.Duration) (judged bool) {
	near, far := tcpPair(t)
	slow := &late{Conn: near}
	ends := make(hand, 1)
	a, b := sessions(t, slow, far, link.Config{}, link.Config{Handler: ends})
	conn := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
	end := <-ends
	slow.held.Lock()
	closed := make(chan struct{})
	began := time.Now()
	reset(b, end)
	go func() { defer close(closed); _ = b.Close() }()
	for range 50 { // one fails if the link is closed
		if _, err := conn.Write([]byte("x")); err != nil {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	slow.held.Unlock()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var told *tunnel.ResetError
	_, err := conn.Read(make([]byte, 1))
	learned := errors.As(err, &told) && told.Code == want
	judged = learned || time.Since(began) < stays
	testutil.Holds(t, learned || !judged, "the stream ended with %v, want %v", err, want)
	promptly(t, "Close", func() { <-closed })
	return judged
}

// One that never reads does not keep it open.
func TestABarredPeerIsNotWaitedForForever(t *testing.T) {
	t.Parallel()
	near, far := tcpPair(t)
	slow := &late{Conn: near}
	cfg := link.Config{DeadAfter: time.Hour}
	_, b := sessions(t, slow, far, cfg, cfg)
	slow.held.Lock()
	defer slow.held.Unlock()
	b.Bar(tunnel.CodePolicy)
	promptly(t, "Close", func() { _ = b.Close() })
}

// holds serves a stream until its context ends, and tells why that was.
type holds chan error

func (h holds) Serve(ctx context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	near, err := answer(nowhere{}, nil)
	if err != nil {
		ended(err)
		return
	}
	<-ctx.Done()
	h <- context.Cause(ctx)
	ended(near.Close())
}

// Who serves a stream hears that the link was barred, also if the link has ended by then. The
// peer is at no fault.
func TestABarredStreamEndsForThat(t *testing.T) {
	serves := make(holds, 1)
	near, far := tcpPair(t)
	a, b := sessions(t, near, far, link.Config{}, link.Config{Handler: serves})
	testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
	b.Bar(tunnel.CodePolicy)
	testutil.Equal(t, b.Stats().Resets, 0, "streams that count as reset for the protocol's or memory's sake")
	_ = a.Close()
	testutil.Equal(t, tunnel.CodeOf(<-serves), tunnel.CodePolicy, "the code that it ended for")
}

// A peer that takes the goodbye late is waited for, too.
func TestAPeerThatReadsTheGoodbyeLateIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // a write takes until it is read
		r := newRig(t, near, far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
		id, conn := r.dialed()
		testutil.NoError(t, conn.Reset(&tunnel.ResetError{Code: tunnel.CodeGone}))
		time.Sleep(600 * time.Millisecond)
		closed := make(chan struct{})
		go func() { defer close(closed); _ = r.ses.Close() }()
		time.Sleep(600 * time.Millisecond)
		r.wantReset(id, uint16(tunnel.CodeGone))
		r.wantType(tGoAway, 0)
		time.Sleep(900 * time.Millisecond)
		testutil.Holds(t, !tunnel.Closed(closed), "the link is closed")
		_ = far.Close()
		<-closed
	})
}
