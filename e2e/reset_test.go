package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// A client that resets while a download is under way has not ended its upload:
// the target must hear of a reset, whichever hop was just writing to whom.
func TestResetDuringADownload(t *testing.T) {
	w := newWhole(t)
	heard := make(chan error, 1)
	target := listen(t, func(c *net.TCPConn) {
		// All hops together hold so much. A reset that comes while it is written
		// is told to the writer, and to nobody again.
		_, err := c.Write(make([]byte, 1<<20))
		if err == nil {
			_, err = io.Copy(io.Discard, c)
		}
		heard <- err
	})
	for _, r := range w.routes(t)[:3] {
		for range scaled(20, 200) {
			c := must(r.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			_ = c.Reset(nil)
			select {
			case err := <-heard:
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("%s: the target read %v, want a reset", r.name, err)
				}
			case <-time.After(patience):
				t.Fatalf("%s: the target heard nothing", r.name)
			}
		}
	}
}

// A client that is gone and a target that never reads do not keep each other:
// the reset is noticed by a hop that has nobody to give more to, and passed on.
func TestResetBehindAStalledTarget(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	wait := make(chan struct{})
	target := listen(t, func(*net.TCPConn) { <-wait })
	defer close(wait)
	routes := w.routes(t)[:3]
	for _, r := range routes {
		c := must(r.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
		fillUp(t, c)
		_ = c.Reset(nil)
	}
	// A look every 2 s, and 5 s at each of three hops for what came before.
	reaches(t, time.Minute, w.agent.HealthURL("/metrics"), "agent_open_endpoint_connections", 0)
	reaches(t, time.Minute, w.server.HealthURL("/metrics"), "server_established_connections", 0)
}

// fillUp writes until nothing more is taken.
func fillUp(t *testing.T, c tunnel.Conn) {
	t.Helper()
	p := bytes.Repeat([]byte("b"), 64<<10)
	for {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}
