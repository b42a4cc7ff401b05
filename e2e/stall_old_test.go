package e2e

import (
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"konnectivity/internal/bench"
	"konnectivity/tunnel"
)

// Without the link an agent's connections share one stream that knows no
// credit: a stalled one is reset after the bound, and until then, as after,
// nobody else is held up. A sidecar without it costs a handshake a connection
// and stalls nobody either.
func TestStalledConnectionsStallNobodyOnOldHops(t *testing.T) {
	for _, c := range []struct{ agent, sidecar string }{{"off", "auto"}, {"auto", "off"}, {"off", "off"}} {
		t.Run(fmt.Sprintf("agent %s, sidecar %s", c.agent, c.sidecar), func(t *testing.T) {
			t.Parallel() // most of it is waiting for the bound
			start := func() *whole {
				w := &whole{Suite: newSuite(t)}
				w.server = must(w.StartServer())(t)
				w.agent = must(w.StartAgent(w.server, "--link="+c.agent))(t)
				w.socks = must(w.StartSOCKS5(w.server, "--link="+c.sidecar))(t)
				w.https = must(w.StartHTTPS(w.server, "--link="+c.sidecar))(t)
				return w
			}
			w := start()
			for i, r := range w.routes(t)[:2] {
				w.besideOld(t, r, c.agent == "off", func() route { return start().routes(t)[i] })
			}
		})
	}
}

// besideOld stalls connections both ways and looks at others, and at the end
// of the stalled ones. Their senders never come to an end by themselves: an agent
// that waits for a stalled destination hears late that a client was reset, and
// goes on reading what that was sent, a gigabyte within two seconds.
func (w *whole) besideOld(t *testing.T, r route, bounded bool, like func() route) {
	const n = 5
	ended := make(chan error, 2*n) // how the sender's side of each ended
	sends := listen(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, newPayload(1, math.MaxInt64))
		ended <- err
	})
	wait := make(chan struct{})
	never := listen(t, func(*net.TCPConn) { <-wait })
	defer close(wait)
	path := bench.Path{Name: r.name, Dialer: r, Target: benchTarget(t)}
	alone := must(path.RoundTrip(t.Context(), time.Second))(t)
	defer hold(t, r, n, sends, func(tunnel.Conn) {})()
	defer hold(t, r, n, never, func(c tunnel.Conn) {
		_, err := io.Copy(c, newPayload(1, math.MaxInt64))
		ended <- err
	})()
	start := time.Now()
	time.Sleep(settle)
	among, bound := roundTripsBeside(t, path, time.Second, alone, 5, like) // soon the stalled ones are reset
	w.dials(t, path)
	t.Logf("%s: p99 %v beside %v alone", r.name, among.P99, alone.P99)
	if among.P99 > bound {
		t.Errorf("%s: p99 of round trips beside stalled ones is %v, alone %v, want at most %v", r.name, among.P99, alone.P99, bound)
	}
	if !bounded {
		return
	}
	for i := range 2 * n {
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: an endless transfer ended in order", r.name)
			}
		case <-time.After(40*time.Second + patience):
			t.Fatalf("%s: only %d of %d stalled connections were reset", r.name, i, 2*n)
		}
	}
	t.Logf("%s: all %d stalled ones were reset after %v", r.name, 2*n, time.Since(start).Round(time.Millisecond))
}
