package resume_test

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// shears cut one connection, once, as soon as one side has written so many bytes.
type shears struct {
	mu      sync.Mutex
	made    int // connections
	conn    int // the one to be cut
	side    int
	left    int // bytes until then
	on, cut bool
}

// pipe is two ends that are cut together.
func (s *shears) pipe() (net.Conn, net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := net.Pipe()
	s.made++
	return &blade{a, b, s, s.made - 1, 0}, &blade{b, a, s, s.made - 1, 1}
}

// set has the side's next write at which the count is reached be the last.
func (s *shears) set(conn, side, at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.side, s.left, s.on = conn, side, at, true
}

// let says how many of n bytes get through.
func (s *shears) let(conn, side, n int) (through int, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on || s.cut || s.conn != conn || s.side != side {
		return n, false
	}
	through = min(n, s.left)
	s.left -= through
	s.cut = through < n
	return through, s.cut
}

func (s *shears) struck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// blade is one end.
type blade struct {
	net.Conn
	other      net.Conn
	s          *shears
	conn, side int
}

func (b *blade) Write(p []byte) (int, error) {
	through, cut := b.s.let(b.conn, b.side, len(p))
	if !cut {
		return b.Conn.Write(p)
	}
	n, _ := b.Conn.Write(p[:through])
	_ = b.Conn.Close()
	_ = b.other.Close()
	return n, net.ErrClosed
}

// A dial, and the first byte behind it, outlive a link that is cut at any byte of
// them, on either leg and in either direction, if there is another soon: the dial
// does not fail, and of all its attempts one connection is left.
func TestDialsOutliveCutsAtEveryByte(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 10
	}
	for conn, leg := range []string{"opener's", "agent's"} {
		for side, from := range []string{"end", "server"} {
			at := 0
			for cut := true; cut; at += step {
				synctest.Test(t, func(t *testing.T) { cut = cutDial(t, conn, side, at) })
				if t.Failed() {
					t.Fatalf("the %s link was cut at byte %d from the %s", leg, at, from)
				}
			}
			t.Logf("the %s link, from the %s: every %d. of %d bytes", leg, from, step, at)
		}
	}
}

func cutDial(t *testing.T, conn, side, at int) (cut bool) {
	var s shears
	var dests atomic.Int32
	w := &world{t: t, wire: s.pipe}
	w.serve = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		dests.Add(1)
		w.wg.Go(func() {
			defer dests.Add(-1)
			defer far.Close()
			_, _ = io.Copy(far, far)
		})
		return tunnel.Wrap(near), nil
	})}
	w.begin(1, time.Minute)
	only := w.servers[0]
	var relinking sync.WaitGroup
	defer relinking.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	near, far := only.near.a, only.far.b
	relinking.Go(func() { relinks(ctx, near, func() { only.cut(toOpener); only.linkNear() }) })
	relinking.Go(func() { relinks(ctx, far, func() { only.cut(toAgent); only.linkFar() }) })
	synctest.Wait()
	s.set(conn, side, at)

	c, err := w.opener.Dialer(tunnel.DialerFunc(only.dialNear)).Dial(ctx, tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Error(err)
		return false
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	if n, far := w.agent.Len(), dests.Load(); n != 1 || far != 1 {
		t.Errorf("%d connections at the agent, %d at the destination", n, far)
	}
	cut = s.struck()
	_ = c.Close()
	time.Sleep(time.Second)
	if n, far := w.agent.Len(), dests.Load(); n != 0 || far != 0 {
		t.Errorf("%d connections at the agent and %d at the destination are left", n, far)
	}
	return cut
}

// relinks makes another link soon after ses is lost.
func relinks(ctx context.Context, ses *link.Session, again func()) {
	select {
	case <-ctx.Done():
		return
	case <-ses.Done():
	}
	time.Sleep(50 * time.Millisecond)
	if ctx.Err() == nil {
		again()
	}
}

// dialNear dials by the server's link, whose loss strikes a dial.
func (s *server) dialNear(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return s.get(toOpener).a.Dial(ctx, f)
}
