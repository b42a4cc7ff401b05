package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/bench"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

const (
	stalledSize = int64(1) << 30 // what each stalled transfer would move

	// stallGrowth is how much more memory all processes together may hold for 100
	// stalled connections: 44 MiB of buffers, of which the agent's are what it
	// keeps to send again, and stacks. Garbage does not count. There may be as
	// much of it as of buffers when they have just been filled, and a process
	// that then rests returns it within some 10 s.
	stallGrowth = 64 << 20

	// settle is for windows and socket buffers to fill.
	settle = time.Second
)

// A stalled connection is one whose one end goes on sending and whose other end
// never reads.
type stall struct {
	name string
	make func(t *testing.T, d tunnel.Dialer, n int) (end func())
}

func stalls(t *testing.T) []stall {
	sends := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(c, newPayload(1, stalledSize)) })
	wait := make(chan struct{})
	never := testutil.Serve(t, func(*net.TCPConn) { <-wait })
	t.Cleanup(func() { close(wait) }) // runs before the listener waits for its connections
	return []stall{
		{"clients never read", func(t *testing.T, d tunnel.Dialer, n int) func() {
			return hold(t, d, n, sends, func(tunnel.Conn) {})
		}},
		{"targets never read", func(t *testing.T, d tunnel.Dialer, n int) func() {
			return hold(t, d, n, never, func(c tunnel.Conn) { _, _ = io.Copy(c, newPayload(1, stalledSize)) })
		}},
	}
}

// hold opens n connections and lets use have each in the background; end
// resets them.
func hold(t *testing.T, d tunnel.Dialer, n int, target string, use func(tunnel.Conn)) (end func()) {
	t.Helper()
	ctx := within(t, 3*patience)
	var wg sync.WaitGroup
	conns := make([]tunnel.Conn, n)
	for i := range conns {
		conns[i] = must(d.Dial(ctx, tunnel.NewFlow("tcp", target)))(t)
		wg.Go(func() { use(conns[i]) })
	}
	return sync.OnceFunc(func() {
		for _, c := range conns {
			_ = c.Reset(nil)
		}
		wg.Wait()
	})
}

// benchTarget speaks the protocol of internal/bench.
func benchTarget(t *testing.T) string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := testutil.Later(func() error { return bench.ServeTarget(ctx, l) })
	t.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

// holds is how much memory all processes have of their own.
func (w *whole) holds(t *testing.T) (sum int64) {
	t.Helper()
	for _, p := range w.Processes() {
		sum += must(p.Memory())(t).Own
	}
	return sum
}

// beside checks that an active connection and new ones go on as alone while n
// others are stalled, and that these hold no more memory than they may.
func (w *whole) beside(t *testing.T, r route, s stall, n int) {
	path := bench.Path{Name: r.name, Dialer: r, Target: benchTarget(t)}
	length := scaled(time.Second/2, 5*time.Second)
	w.dials(t, path) // and so what is lazily made, is
	alone := must(path.RoundTrip(t.Context(), length))(t)
	before := w.holds(t)
	end := s.make(t, r, n)
	defer end()
	time.Sleep(settle)
	among, bound := roundTripsBeside(t, path, length, alone, 10, func() route { return newWhole(t).routes(t)[slices.Index(fronts, r.name)] })
	w.dials(t, path)
	grown := w.holds(t) - before
	for end := time.Now().Add(patience); grown > stallGrowth && time.Now().Before(end); time.Sleep(time.Second) {
		grown = w.holds(t) - before
	}
	t.Logf("%-5s %3d %s: p50 %v beside %v alone, p99 %v beside %v alone (%.2f times), %d MiB more",
		r.name, n, s.name, among.P50, alone.P50, among.P99, alone.P99, float64(among.P99)/float64(alone.P99), grown>>20)
	testutil.AtMost(t, among.P99, bound, "p99 of round trips beside %d stalled; alone it is %v", n, alone.P99)
	testutil.AtMost(t, grown, stallGrowth, "bytes that %d stalled hold", n)
}

// besideBound is what a round trip may take beside stalled connections. It is
// generous: what is to be told apart is waiting for a stalled peer from this
// machine's own load.
func besideBound(alone bench.Latency) time.Duration { return 250*time.Millisecond + 4*alone.P99 }

// roundTripsBeside measures again where the bound is passed, at most so many
// times: waiting for a stalled peer lasts, other work of this machine does not.
// From the second time on the bound is that of what the same takes at the same
// time by a like route where nobody is stalled.
func roundTripsBeside(t *testing.T, path bench.Path, length time.Duration, alone bench.Latency, tries int, like func() route) (among bench.Latency, bound time.Duration) {
	t.Helper()
	among, bound = must(path.RoundTrip(t.Context(), length))(t), besideBound(alone)
	if among.P99 <= bound {
		return among, bound
	}
	r := like()
	control := bench.Path{Name: r.name, Dialer: r, Target: path.Target}
	for range tries - 1 {
		beside := testutil.Later(func() bench.Latency {
			l, _ := control.RoundTrip(t.Context(), length) // none is 0, and bounds nothing
			return l
		})
		among = must(path.RoundTrip(t.Context(), length))(t)
		bound = max(besideBound(alone), besideBound(<-beside))
		t.Logf("%s: again: p99 %v, want at most %v", path.Name, among.P99, bound)
		if among.P99 <= bound {
			break
		}
	}
	return among, bound
}

// dials makes 200 new connections with a round trip each; all must succeed.
func (w *whole) dials(t *testing.T, path bench.Path) {
	t.Helper()
	held, err := path.Idle(within(t, 2*patience), 200, 0)
	testutil.Requires(t, err == nil, "not all of 200 new connections succeeded: %v", err)
	held.Close()
}

// fronts are the names of all routes, in their order.
var fronts = []string{"socks5", "https", "mtls", "uds"}

func TestStalledConnectionsStallNobody(t *testing.T) {
	t.Parallel()
	all := stalls(t)
	for _, n := range []int{1, 100} {
		for _, s := range all {
			for i, name := range fronts {
				t.Run(fmt.Sprintf("%d, %s, %s", n, s.name, name), func(t *testing.T) {
					t.Parallel()     // most of it is waiting
					w := newWhole(t) // its memory starts afresh
					w.beside(t, w.routes(t)[i], s, n)
				})
			}
		}
	}
}
