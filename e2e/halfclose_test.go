package e2e

import (
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Whoever sends and then ends its direction still hears the answer: all bytes
// arrived before the end, and the end did not take the other direction along.
func TestHalfClose(t *testing.T) {
	for link, tries := range map[string]int{"auto": scaled(10, 250), "off": 5} {
		t.Run("link "+link, func(t *testing.T) {
			w, v := newWhole(t, "--link="+link), newVault(t)
			var all sync.WaitGroup
			for _, r := range w.routes(t) {
				all.Go(func() {
					for i := range tries {
						o := order{Kind: uploadClosed, Seed: uint8(i % 4), Size: scaled[int64](4<<20, 100<<20)}
						testutil.Succeeds(t, o.by(t, r, v), "%s: try %d", r.name, i)
					}
				})
			}
			all.Wait()
		})
	}
}

// by makes a transfer with a vault, on a connection of its own.
func (o order) by(t *testing.T, d tunnel.Dialer, v *vault) error {
	c, err := d.Dial(within(t, patience), tunnel.NewFlow("tcp", v.address))
	if err != nil {
		return err
	}
	defer c.Close()
	return transfer(patient{c}, o, true)
}

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
