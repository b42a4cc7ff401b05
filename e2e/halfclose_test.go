package e2e

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A reset is a reset at the other end, never an orderly end. A unix socket
// has no reset, so it is not among the routes.
func TestResetsCrossAllHops(t *testing.T) {
	w := newWhole(t)
	for _, r := range w.routes(t)[:3] {
		t.Run(r.name, func(t *testing.T) {
			t.Run("by the target", func(t *testing.T) { resetByTarget(t, r) })
			t.Run("by the client", func(t *testing.T) { resetByClient(t, r) })
		})
	}
}

func resetByTarget(t *testing.T, d tunnel.Dialer) {
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	c := dialed(t, d, target)
	_ = c.SetDeadline(time.Now().Add(patience))
	testutil.Must(io.ReadFull(c, make([]byte, 1)))(t)
	testutil.Must(c.Write([]byte("x")))(t)
	testutil.ErrorIs(t, testutil.Err(io.ReadAll(c)), syscall.ECONNRESET, "the client reads")
}

func resetByClient(t *testing.T, d tunnel.Dialer) {
	heard := make(chan error, 1)
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		heard <- err
	})
	c := dialed(t, d, target)
	testutil.Must(c.Write([]byte("x")))(t)
	_ = c.Reset(nil)
	select {
	case err := <-heard:
		testutil.ErrorIs(t, err, syscall.ECONNRESET, "the target reads")
	case <-time.After(patience):
		t.Error("the target never heard of the client's reset")
	}
}
