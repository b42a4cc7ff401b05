package link_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// unread are streams of sessions whose peer reads nothing: over a socket whose buffer is
// full, and over connections that hide theirs. The read loop must not wait for either when a stream
// ends.
var unread = map[string]func(t *testing.T) (*rig, tunnel.Conn){
	"a full socket": full,
	"buffered":      func(t *testing.T) (*rig, tunnel.Conn) { return gated(t, link.Buffered, false) },
	"bare":          func(t *testing.T) (*rig, tunnel.Conn) { return gated(t, bare, false) },
	"a stuck write": func(t *testing.T) (*rig, tunnel.Conn) { return gated(t, bare, true) },
}

func bare(c net.Conn) net.Conn { return c }

// full has no write that is stuck in it yet; the first one would be.
func full(t *testing.T) (*rig, tunnel.Conn) {
	near, far := tcpPair(t)
	r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
	_, conn := r.dialed()
	r.wantNothing() // the first PING is behind us
	_ = near.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		if _, err := near.Write(make([]byte, 64<<10)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	_ = near.SetWriteDeadline(time.Time{})
	return r, conn
}

// gated is over a gate that is shut, with a write that waits there if stuck.
func gated(t *testing.T, wrap func(net.Conn) net.Conn, stuck bool) (*rig, tunnel.Conn) {
	near, far := tcpPair(t)
	g := &gate{Conn: near}
	g.cond.L = &g.mu
	r := newRig(t, wrap(hasty{g}), far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
	_, conn := r.dialed()
	r.wantNothing() // the first PING is behind us
	g.set(true)
	if stuck {
		go func() { _, _ = conn.Write(make([]byte, 1<<20)) }()
		g.waitBlocked()
	}
	return r, conn
}

// promptly fails the test unless f is done in time, and long before a link is found dead that is
// to be so after an hour.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	testutil.Receive(t, what, done)
}

// unhindered are the calls that a peer which reads nothing must not hold up.
var unhindered = map[string]func(*rig, tunnel.Conn) error{
	"Dial": func(r *rig, _ tunnel.Conn) error {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, err := r.ses.Dial(ctx, tunnel.NewFlow("tcp", "x:1"))
		if tunnel.FailureOf(err) != tunnel.FailTimeout {
			return fmt.Errorf("a dial that nobody answers ended with %v", err)
		}
		return nil
	},
	"Close":      func(_ *rig, c tunnel.Conn) error { return c.Close() },
	"Reset":      func(_ *rig, c tunnel.Conn) error { return c.Reset(nil) },
	"CloseWrite": func(_ *rig, c tunnel.Conn) error { return c.CloseWrite() },
}

// Nor does the session's Close behind such a call hang, and Err tells that this side has closed
// the link.
func TestNothingHangsOnAPeerThatReadsNothing(t *testing.T) {
	noLeaks(t)
	for what, call := range unhindered {
		for over, open := range unread {
			t.Run(what+"/"+over, func(t *testing.T) {
				t.Parallel()
				r, conn := open(t)
				promptly(t, what, func() {
					err := call(r, conn)
					testutil.Holds(t, err == nil || errors.Is(err, net.ErrClosed), "%v", err)
				})
				promptly(t, "the session's Close", func() { _ = r.ses.Close() })
				testutil.ErrorIs(t, r.ses.Err(), link.ErrClosed, "how the session ended")
				_, _ = conn.Close(), r.conn.Close()
			})
		}
	}
}

// A link that is found dead while the kernel holds its bytes is over at once:
// TLS must not wait behind them to say goodbye.
func TestDeadLinkIsOverAtOnce(t *testing.T) {
	noLeaks(t)
	near, far := tlsPair(t)
	r := newRig(t, near, far, true, link.Config{PingInterval: 100 * time.Millisecond, DeadAfter: 5 * time.Second})
	id, conn := r.dialed()
	r.send(frame{tCredit, 0, id, u64(1 << 40)})
	written := make(chan struct{})
	go func() { defer close(written); _, _ = conn.Write(make([]byte, 64<<20)) }()
	<-r.ses.Done()
	for looks := 0; !tunnel.Closed(written); looks++ { // of which a busy machine makes fewer in that time
		if looks == 300 { // TLS would wait for 5 s
			t.Error("a write was stuck for another 3 s")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	<-written
	_, _, _ = conn.Close(), r.ses.Close(), far.Close()
}

// A link that is probed, or whose stream is detached while a write is in progress, ends
// soon unless its peer shows that it lives. Each probe keeps its own bound.
func TestProbes(t *testing.T) {
	const writeBound, answerBound = 2 * time.Second, 6 * time.Second
	detach := func(_ *link.Session, st *link.Stream) { st.Detach() }
	probe := func(ses *link.Session, _ *link.Stream) { ses.Probe() }
	later := func(ses *link.Session, _ *link.Stream) { time.AfterFunc(answerBound/2, ses.Probe) }
	type probes []func(*link.Session, *link.Stream)
	for name, c := range map[string]struct {
		writes  bool // a write is in progress
		reads   bool // the peer's kernel takes bytes from then on
		probes  probes
		answers time.Duration // after which the peer sends a frame; 0: never
		ends    time.Duration // after which the link ends; 0: not
	}{
		"detached, nothing to write":            {probes: probes{detach}},
		"detached, the write is stuck":          {writes: true, probes: probes{detach}, ends: writeBound},
		"both, and the write proceeds":          {writes: true, reads: true, probes: probes{detach, probe}, ends: answerBound},
		"both, and the write is stuck":          {writes: true, probes: probes{probe, detach}, ends: writeBound},
		"probed, silent":                        {reads: true, probes: probes{probe}, ends: answerBound},
		"probed twice, which changes nothing":   {reads: true, probes: probes{probe, probe}, ends: answerBound},
		"probed, answers":                       {reads: true, probes: probes{probe, probe}, answers: 10 * time.Millisecond},
		"probed again behind the answer":        {reads: true, probes: probes{probe, later}, answers: 10 * time.Millisecond},
		"probed, answers at the last moment":    {reads: true, probes: probes{probe}, answers: answerBound - time.Millisecond},
		"probed, answers after the last moment": {reads: true, probes: probes{probe}, answers: answerBound + time.Millisecond, ends: answerBound},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			near, far := net.Pipe() // takes only the bytes that are read
			r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
			_, conn := r.dialed()
			r.wantNothing() // the first PING is behind us
			st := conn.(*link.Stream)
			var running sync.WaitGroup
			if c.writes {
				running.Go(func() { _, _ = conn.Write(make([]byte, 32<<10)) })
			}
			synctest.Wait()
			testutil.Equal(t, st.Stuck(), c.writes, "a write is stuck")
			began := time.Now()
			for _, probe := range c.probes {
				probe(r.ses, st)
			}
			if c.reads {
				running.Go(func() { discard(far) })
			}
			if c.answers > 0 {
				time.AfterFunc(c.answers, func() { _, _ = far.Write(frame{tPing, ack, 0, u64(1)}.bytes()) })
			}
			select {
			case <-r.ses.Done():
				testutil.Equal(t, time.Since(began), c.ends, "the time after which the link ended")
				testutil.ErrorIs(t, r.ses.Err(), link.ErrDead, "the link")
			case <-time.After(3 * answerBound):
				testutil.Equal(t, c.ends, 0, "when the link is to end, which lives")
			}
			_, _ = far.Close(), r.ses.Close()
			running.Wait() // a write that was stuck ends with the link
		})
	}
}

// discard reads as the kernel of a peer that is gone does.
func discard(c net.Conn) {
	_ = c.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, c)
}

// gate is a net.Conn whose kernel can be made to take nothing.
type gate struct {
	net.Conn
	mu      sync.Mutex
	cond    sync.Cond
	shut    bool
	blocked int // writers that wait
	closed  bool
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	g.blocked++
	g.cond.Broadcast()
	for g.shut && !g.closed {
		g.cond.Wait()
	}
	g.blocked--
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return g.Conn.Write(p)
}

func (g *gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.cond.Broadcast()
	g.mu.Unlock()
	return g.Conn.Close()
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.cond.Broadcast()
}

// waitBlocked returns once a writer waits at the gate.
func (g *gate) waitBlocked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.blocked == 0 {
		g.cond.Wait()
	}
}
