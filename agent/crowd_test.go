package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// busyWorld is a world whose server computes in each handshake, in turns as a real
// one has them.
type busyWorld struct {
	*world
	turns *admission.Queue
	takes time.Duration

	mu                     sync.Mutex
	computing, most, begun int
}

// crowdMember is one agent's way to it.
type crowdMember struct {
	w    *busyWorld
	from netip.Prefix
}

func (m crowdMember) connect(ctx context.Context, to address) (session, error) {
	s, err := m.w.world.connect(ctx, to)
	if err != nil {
		return nil, err
	}
	ticket := &admission.Ticket{Source: m.from}
	if err := m.w.turns.Wait(ctx, ticket); err != nil {
		_ = s.Close()
		return nil, &connectError{stage: "tls", err: err}
	}
	defer m.w.turns.Done(ticket)
	m.w.compute()
	return s, nil
}

func (w *busyWorld) compute() {
	w.mu.Lock()
	w.begun++
	w.computing++
	w.most = max(w.most, w.computing)
	w.mu.Unlock()
	time.Sleep(w.takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.computing--
}

// crowd is many agents of one server, in a bubble.
type crowd struct {
	w      *busyWorld
	agents []*Agent
	run    sync.WaitGroup
	stop   context.CancelFunc
}

func newCrowd(t *testing.T, w *busyWorld, n int) *crowd {
	w.protocol = protocolLink
	servers := balanced(w.world, "a")
	ctx, stop := context.WithCancel(t.Context())
	c := &crowd{w: w, stop: stop}
	for i := range n {
		a, err := New(Options{
			ID: fmt.Sprint(i), Servers: servers, Log: logging.Silent(), Grace: -1,
			TLS:    func(string, ...string) *tls.Config { return nil },
			Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, errors.New("unused") }),
		})
		testutil.NoError(t, err)
		a.set.connect = crowdMember{w, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)}.connect
		c.agents = append(c.agents, a)
		c.run.Go(func() { _ = a.Run(ctx) })
	}
	return c
}

func (c *crowd) close() {
	c.stop()
	c.run.Wait()
}

// back waits until all have a server again, and says how long that took.
func (c *crowd) back() time.Duration {
	began := time.Now()
	for _, a := range c.agents {
		for a.Ready() != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return time.Since(began)
}

// A server that comes back to 1,000 agents, and can do 200 handshakes a second, has
// all of them soon, and each after one handshake but for a few that happen to look
// for more servers: none gives up in line and comes again.
func TestManyAgentsAfterARestart(t *testing.T) {
	const looking, atOnce, takes = 50, 2, 10 * time.Millisecond
	agents := 1000
	if testing.Short() {
		agents = 200
	}
	for _, c := range []struct{ outage, bound time.Duration }{
		{0, 6 * time.Second},
		{2 * time.Second, 8 * time.Second},
		{time.Minute, 15 * time.Second},
	} {
		testutil.Bubble(t, fmt.Sprint("away for ", c.outage), func(t *testing.T) {
			w := &busyWorld{world: newWorld(), turns: admission.NewQueue(admission.QueueConfig{Precedence: [][]int{{0}}, Limit: atOnce}), takes: takes}
			all := newCrowd(t, w, agents)
			defer all.close()
			all.back()
			time.Sleep(time.Minute)
			w.stop("a")
			lost := time.Now()
			synctest.Wait()
			time.Sleep(c.outage)
			tries := w.attemptsSince(lost)
			w.begun, w.most = 0, 0
			w.start("a")
			took := all.back()
			synctest.Wait()
			t.Logf("%d tries while it was away; all were back after %v and %d handshakes", tries, took, w.begun)
			testutil.Holds(t, took <= c.bound && w.begun <= agents+looking && w.most <= atOnce,
				"all were back after %v and %d handshakes, %d of them at a time", took, w.begun, w.most)
		})
	}
}
