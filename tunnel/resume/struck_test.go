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

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A dial, and the first byte behind it, outlive a link that is cut at any byte of
// them, on either leg and in either direction, if there is another soon: the dial
// does not fail, and of all its attempts one connection is left.
func TestDialsOutliveCutsAtEveryByte(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 10
	}
	for which, leg := range map[bool]string{toOpener: "opener's", toAgent: "agent's"} {
		for to, from := range []string{"server", "end"} {
			at := 0
			for cut := true; cut; at += step {
				synctest.Test(t, func(t *testing.T) { cut = cutDial(t, which, to, at) })
				testutil.Requires(t, !t.Failed(),
					"the %s link was cut at byte %d from the %s", leg, at, from)
			}
			t.Logf("the %s link, from the %s: every %d. of %d bytes", leg, from, step, at)
		}
	}
}

// cutDial has one of the links tear behind so many bytes to one of its ends, and reports whether
// there were so many.
func cutDial(t *testing.T, which bool, to, at int) (cut bool) {
	var dests atomic.Int32
	w := &world{t: t, wire: wires}
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
	relinking.Go(func() { relinks(ctx, near, func() { only.relink(toOpener) }) })
	relinking.Go(func() { relinks(ctx, far, func() { only.relink(toAgent) }) })
	synctest.Wait()
	torn := only.get(which).wire
	torn.tear(to, at)

	c, err := w.opener.Dialer(tunnel.DialerFunc(only.dialNear)).Dial(ctx, tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Error(err)
		return false
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	testutil.Succeeds(t, testutil.Err(c.Write([]byte("x"))), "the write")
	testutil.Succeeds(t, testutil.Err(io.ReadFull(c, make([]byte, 1))), "the echo")
	time.Sleep(time.Second)
	testutil.Equal(t, w.agent.Len(), 1, "connections at the agent")
	testutil.Equal(t, dests.Load(), 1, "at the destination")
	cut = torn.tore()
	_ = c.Close()
	time.Sleep(time.Second)
	testutil.Equal(t, w.agent.Len(), 0, "connections left at the agent")
	testutil.Equal(t, dests.Load(), 0, "left at the destination")
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
