package e2e

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// livenessBound is the time within which a peer that is gone without a word is
// noticed, by default; slack is for a busy machine.
const (
	livenessBound = 20 * time.Second
	slack         = 30 * time.Second
)

// ready is how many agents' connections the server counts.
func ready(t *testing.T, srv *suite.Server, want float64, bound time.Duration) {
	t.Helper()
	reaches(t, bound, srv.HealthURL("/metrics"), "server_ready_backend_connections", want)
}

// outcome of one echo over a connection of its own.
type outcome struct {
	took time.Duration
	err  error
}

func echoOnce(d tunnel.Dialer, target string) outcome {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := func() error {
		c, err := d.Dial(ctx, tunnel.NewFlow("tcp", target))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 4))
		return err
	}()
	return outcome{time.Since(start), err}
}

// frozenWindow is how long connections wait for a frozen agent once it was given
// up: it might come back.
const frozenWindow = 2 * time.Second

// One of two agents freezes under load: what is lost is told once the liveness
// bound and the window are over, the other agent carries on, and the frozen one
// heals.
func TestFrozenAgent(t *testing.T) {
	t.Parallel() // it waits
	for _, mode := range []string{"auto", "off"} {
		t.Run("link "+mode, func(t *testing.T) {
			t.Parallel() // most of it is waiting for the bound
			w := &whole{Suite: newSuite(t)}
			w.server = must(w.StartServer())(t)
			for range 2 {
				w.agent = must(w.StartAgent(w.server, "--link="+mode, "--resume-window="+frozenWindow.String()))(t)
			}
			w.socks = must(w.StartSOCKS5(w.server))(t)
			w.https = must(w.StartHTTPS(w.server))(t)
			ready(t, w.server, 2, patience)
			w.freeze(t)
		})
	}
}

func (w *whole) freeze(t *testing.T) {
	target := testutil.Echo(t)
	routes := w.routes(t)
	var sent, failed atomic.Int64
	var slowest atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 40 {
		wg.Go(func() {
			r := routes[i%len(routes)]
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				o := echoOnce(r, target)
				sent.Add(1)
				if o.err == nil {
					continue
				}
				failed.Add(1)
				slowest.Store(max(slowest.Load(), int64(o.took)))
				testutil.AtMost(t, o.took, livenessBound+frozenWindow+slack,
					"%s: the time until it failed (%v)", r.name, o.err)
			}
		})
	}
	eventually(t, patience, "requests before the freeze", func() (bool, any) { n := sent.Load(); return n >= 200, n })
	if n := failed.Load(); n > 0 {
		t.Fatalf("before the freeze %d of %d failed", n, sent.Load())
	}
	frozen := time.Now()
	_ = w.agent.Signal(suite.Freeze)
	ready(t, w.server, 1, livenessBound+slack)
	t.Logf("deselected after %v", time.Since(frozen).Round(10*time.Millisecond))
	time.Sleep(frozenWindow + time.Second) // what hung until then has ended
	cancel()
	wg.Wait()
	t.Logf("%d requests, %d failed, the slowest after %v", sent.Load(), failed.Load(), time.Duration(slowest.Load()).Round(10*time.Millisecond))
	for range 40 {
		testutil.NoError(t, echoOnce(routes[0], target).err) // by the other agent alone
	}
	_ = w.agent.Signal(suite.Thaw)
	ready(t, w.server, 2, patience)
	for range 40 {
		testutil.NoError(t, echoOnce(routes[0], target).err) // also by the one that is back
	}
}
