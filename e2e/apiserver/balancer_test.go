package apiserver

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// backend is a port of this machine, and who says whether it may be used.
type backend struct {
	port  int
	ready func() bool
}

// balancer takes the backends that are ready in turn. As a load balancer it goes
// on to the next one if one refuses; as a Service it does not.
type balancer struct {
	port    int
	service bool

	mu       sync.Mutex
	backends []backend
}

func newBalancer(t *testing.T, service bool) *balancer {
	t.Helper()
	l := testutil.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	b := &balancer{port: l.Addr().(*net.TCPAddr).Port, service: service}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for turn := 0; ; turn++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { b.carry(ctx, near, turn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		work.Wait()
	})
	return b
}

// add has it use a backend, too.
func (b *balancer) add(port int, ready func() bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = append(b.backends, backend{port, ready})
}

// from are the backends, a certain one first.
func (b *balancer) from(turn int) []backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.backends) == 0 {
		return nil
	}
	first := turn % len(b.backends)
	return slices.Concat(b.backends[first:], b.backends[:first])
}

func (b *balancer) carry(ctx context.Context, near net.Conn, turn int) {
	defer near.Close()
	for _, to := range b.from(turn) {
		if !to.ready() {
			continue
		}
		far, err := net.Dial("tcp4", suite.Loopback(to.port))
		if err != nil && b.service {
			return
		}
		if err != nil {
			continue
		}
		relay := tunnel.Relay{A: tunnel.Wrap(near), B: tunnel.Wrap(far)}
		_ = relay.Run(ctx)
		return
	}
}

// answers says whether a URL answers 200 to a client.
func answers(client *http.Client, url string) bool {
	res, err := client.Get(url)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}
