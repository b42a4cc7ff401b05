package e2e

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Whoever sends and then ends its direction still hears the answer: all bytes
// arrived before the end, and the end did not take the other direction along.
func TestHalfClose(t *testing.T) {
	for link, tries := range map[string]int{"auto": scaled(40, 1000), "off": 20} {
		t.Run("link "+link, func(t *testing.T) {
			newWhole(t, "--link="+link).halfCloses(t, tries, scaled[int64](4<<20, 100<<20))
		})
	}
}

func (w *whole) halfCloses(t *testing.T, tries int, size int64) {
	routes := w.routes(t)
	const seeds = 4
	var want [seeds]string
	for i := range want {
		want[i] = sum(int64(i), size)
	}
	target := listen(t, func(c *net.TCPConn) {
		if h, err := hashOf(c); err == nil {
			fmt.Fprint(c, h)
		}
	})
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 4 {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= tries; i = int(next.Add(1)) {
				r := routes[i%len(routes)]
				got, err := halfClose(t, r, target, newPayload(int64(i%seeds), size))
				if err != nil || got != want[i%seeds] {
					t.Errorf("%s: try %d: the target's hash is %q, %v", r.name, i, got, err)
				}
			}
		})
	}
	wg.Wait()
}

func halfClose(t *testing.T, d tunnel.Dialer, target string, body io.Reader) (answer string, err error) {
	c, err := d.Dial(within(t, patience), tunnel.NewFlow("tcp", target))
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(scaled(time.Minute, 5*time.Minute)))
	if _, err := io.Copy(c, body); err != nil {
		return "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(c)
	return string(got), err
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
	target := listen(t, func(c *net.TCPConn) {
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
	target := listen(t, func(c *net.TCPConn) {
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
