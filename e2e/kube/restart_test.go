package kube

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// pressure dials anew for every request, until stopped.
type pressure struct {
	stop   func()
	done   chan struct{}
	ok     atomic.Int64
	failed atomic.Int64
	last   atomic.Pointer[error]
}

func press(t *testing.T, api *apiserver) *pressure {
	ctx, stop := context.WithCancel(t.Context())
	p := &pressure{stop: stop, done: make(chan struct{})}
	api.transport.DisableKeepAlives = true
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			if err := api.put(t.Context(), noise(10<<10)); err != nil {
				p.failed.Add(1)
				p.last.Store(&err)
			} else {
				p.ok.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return p
}

func (p *pressure) end() {
	p.stop()
	<-p.done
}

// TestAgentsRollOver replaces every agent: nobody may notice.
func TestAgentsRollOver(t *testing.T) {
	inEveryKind(t, func(t *testing.T, c *cluster, api *apiserver) {
		p := press(t, api)
		for range len(c.agents) {
			old := c.agents[0]
			c.agents = c.agents[1:]
			c.addAgent(t)
			code, err := old.Stop()
			testutil.Holds(t, code == 0 && err == nil, "the agent ended with %d, %v", code, err)
		}
		for end := time.Now().Add(patience); p.ok.Load() < 10 && p.failed.Load() == 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond) // a busy machine may have had less time for them
		}
		p.end()
		if last := p.last.Load(); last != nil {
			t.Errorf("%d requests went through, %d failed, the last with %v", p.ok.Load(), p.failed.Load(), *last)
		} else if p.ok.Load() < 10 {
			t.Errorf("%d requests went through", p.ok.Load())
		}
	})
}

// TestServerRestarts replaces the only server: requests fail meanwhile (by gRPC
// they wait, as its client does), and go through again soon after, with nothing
// left behind.
func TestServerRestarts(t *testing.T) {
	inEveryKind(t, func(t *testing.T, c *cluster, api *apiserver) {
		base := c.measure(t)
		p := press(t, api)
		code, err := c.server.Stop()
		testutil.Holds(t, code == 0 && err == nil, "the server ended with %d, %v", code, err)
		testutil.NoError(t, c.suite.RunServer(c.server, "--graceful-shutdown-timeout=5s"))
		back := time.Now()
		for before := p.ok.Load(); p.ok.Load() == before; time.Sleep(20 * time.Millisecond) {
			if time.Since(back) > patience {
				t.Fatalf("nothing goes through %v after the restart: %v", patience, *p.last.Load())
			}
		}
		p.end()
		failed := p.failed.Load()
		testutil.Holds(t, metric(t, c.server.HealthURL("/metrics"), "konnectivity_network_proxy_server_requests_total") != 0,
			"requests went past the new server")
		testutil.Succeeds(t, api.put(t.Context(), noise(1<<20)), "after %d failures", failed)
		api.rest()
		c.settle(t, base)
	})
}
