package resume_test

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// dialed is a connection through w and its destination's end.
func (w *world) dialed(t *testing.T, ctx context.Context, client *tunnel.Client) (tunnel.Conn, net.Conn) {
	t.Helper()
	l := w.listen(t)
	f := tunnel.NewFlow("tcp", "dest:1")
	f.Client = client
	c := testutil.Must(w.opener.Dialer(w).Dial(ctx, f))(t)
	far := testutil.Must(l.Accept())(t)
	t.Cleanup(func() { c.Close(); far.Close() })
	return c, far
}

// alone takes the opener's only link from it.
func (w *world) alone(t *testing.T) {
	t.Helper()
	w.servers[0].cut(toOpener)
	eventually(t, func() bool { return w.opener.Stats().Detached == 1 })
}

// What is reset while there is no carrier is over at the other end as soon as
// there is one, long before the window has passed.
func TestResetWithoutACarrier(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	c, far := w.dialed(t, t.Context(), nil)
	w.alone(t)
	testutil.NoError(t, c.Reset(&tunnel.ResetError{Code: tunnel.CodeTimeout}))
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Read(make([]byte, 1)))), tunnel.CodeTimeout, "it reads")
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Write([]byte("x")))), tunnel.CodeTimeout, "it writes")
	w.servers[0].linkNear()
	readsReset(t, far)
	eventually(t, func() bool { return w.opener.Len() == 0 && w.agent.Len() == 0 })
}

// The acceptor resets what has no carrier: whoever resumes it hears of it.
func TestResetByTheDestinationWithoutACarrier(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	c, far := w.dialed(t, t.Context(), nil)
	w.alone(t)
	_ = far.(*net.TCPConn).SetLinger(0)
	far.Close()
	eventually(t, func() bool { return w.agent.Len() == 0 })
	w.servers[0].linkNear()
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Read(make([]byte, 1)))), tunnel.CodePeerReset, "it reads")
	eventually(t, func() bool { return w.opener.Len() == 0 })
}

// The streams that a connection goes on by count in the budget of whoever dialed
// it, as the first did.
func TestCarriersCountInTheDialersBudget(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	budget := link.NewBudget(1 << 30)
	c, far := w.dialed(t, t.Context(), &tunnel.Client{Budget: budget})
	w.alone(t)
	w.servers[0].linkNear()
	testutil.Must(far.Write(make([]byte, 10<<10)))(t)
	eventually(t, func() bool { return budget.Used() >= 10<<10 })
	_ = c
}

// An end does not keep what its dial's context holds, such as timers.
func TestAnEndKeepsNothingOfItsDial(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	type key struct{}
	value := new([1 << 10]byte)
	held := weak.Make(value)
	c, _ := w.dialed(t, context.WithValue(t.Context(), key{}, value), nil)
	eventually(t, func() bool {
		runtime.GC()
		return held.Value() == nil
	})
	runtime.KeepAlive(c)
}

// A destination that takes nothing costs an end no more than the smallest buffer.
func TestRoomFollowsAcknowledgements(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	w.deaf = true
	c := testutil.Must(w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
	var sent atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		block := make([]byte, 16<<10)
		for {
			n, err := c.Write(block)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	eventually(t, func() bool {
		before := sent.Load()
		time.Sleep(100 * time.Millisecond)
		return before > 0 && sent.Load() == before
	})
	testutil.AtMost(t, w.opener.Stats().Kept, 192<<10, "bytes that are kept")
	_ = c.Reset(nil)
	<-done
}
