package e2e

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// balancerPoll is how often a balancer asks whether its backends are ready;
// between two looks it may send connections to one that goes.
const balancerPoll = 100 * time.Millisecond

// backend is a port that a balancer spreads connections over.
type backend struct {
	port   int
	health string // URL that answers 200 while the port may be used; "": always
}

// balancer is what stands before several servers: a Service or a load
// balancer. It forwards TCP to a ready backend, chosen by chance, and to
// another if that one refuses.
type balancer struct {
	port     int
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	work     sync.WaitGroup

	mu       sync.Mutex
	backends []backend
	down     map[int]bool // by port
	wires    map[*wire]bool
	still    chan struct{}  // closed when bytes move again; nil: they do
	left     []*net.TCPConn // whose other side was severed
}

func newBalancer(t *testing.T, backends ...backend) *balancer {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	b := &balancer{port: l.Addr().(*net.TCPAddr).Port, listener: l, ctx: ctx, cancel: cancel, backends: backends, down: map[int]bool{}, wires: map[*wire]bool{}}
	b.work.Go(func() { b.watch(ctx) })
	b.work.Go(func() { b.serve(ctx) })
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		b.cut()
		b.mu.Lock()
		for _, c := range b.left {
			abort(c)
		}
		b.mu.Unlock()
		b.work.Wait()
	})
	return b
}

// clientSide and agentSide balance over the ports of servers.
func clientSide(servers ...*suite.Server) (all []backend) {
	for _, s := range servers {
		all = append(all, backend{s.ClientPort, s.HealthURL("/readyz")})
	}
	return all
}

func agentSide(servers ...*suite.Server) (all []backend) {
	for _, s := range servers {
		all = append(all, backend{port: s.AgentPort})
	}
	return all
}

// set replaces the backends; connections that exist stay.
func (b *balancer) set(backends ...backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = backends
}

// restarted says that what was behind a port is gone: the next one there is
// taken for ready only when it says so.
func (b *balancer) restarted(port int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down[port] = true
}

// front looks like a server to whoever is told to connect to it.
func (b *balancer) front() *suite.Server {
	return &suite.Server{ClientPort: b.port, AgentPort: b.port}
}

func (b *balancer) watch(ctx context.Context) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		b.mu.Lock()
		backends := slices.Clone(b.backends)
		b.mu.Unlock()
		for _, to := range backends {
			if to.health == "" {
				continue
			}
			res, err := client.Get(to.health)
			if err == nil {
				res.Body.Close()
			}
			b.mu.Lock()
			b.down[to.port] = err != nil || res.StatusCode != http.StatusOK
			b.mu.Unlock()
		}
		pause(ctx, balancerPoll)
	}
}

// order is the backends to try: ready ones first, each kind shuffled.
func (b *balancer) order() []backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(b.backends)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	down := slices.DeleteFunc(slices.Clone(all), func(to backend) bool { return !b.down[to.port] })
	return append(slices.DeleteFunc(all, func(to backend) bool { return b.down[to.port] }), down...)
}

func (b *balancer) serve(ctx context.Context) {
	for {
		near, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.work.Go(func() {
			for _, to := range b.order() {
				far, err := net.Dial("tcp", suite.Loopback(to.port))
				if err != nil {
					continue
				}
				b.carry(to, &wire{near: near.(*net.TCPConn), far: far.(*net.TCPConn)})
				return
			}
			near.Close()
		})
	}
}

// wire is a connection that a balancer carries, from a client, near, to a backend, far.
type wire struct {
	near, far *net.TCPConn
	silent    atomic.Bool // the side that is left does not learn that the other has ended
}

// reset ends both sides.
func (w *wire) reset() {
	if !w.silent.Load() {
		abort(w.near)
		abort(w.far)
	}
}

// abort closes c with a reset.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// carry forwards both ways until both directions have ended, or one has failed. A connection
// to a backend that was taken away during the dial is reset, since a cut meanwhile has missed it.
func (b *balancer) carry(to backend, w *wire) {
	b.mu.Lock()
	if b.ctx.Err() != nil || !slices.Contains(b.backends, to) {
		b.mu.Unlock()
		w.reset()
		return
	}
	b.wires[w] = true
	b.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { b.pump(w, w.far, w.near) })
	both.Go(func() { b.pump(w, w.near, w.far) })
	both.Wait()
	w.reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.wires, w)
}

// pump forwards one direction. While the balancer stands still neither bytes nor
// ends get through.
func (b *balancer) pump(w *wire, to, from *net.TCPConn) {
	p := make([]byte, 64<<10)
	for {
		n, err := from.Read(p)
		b.moves()
		if w.silent.Load() {
			return
		}
		if _, failed := to.Write(p[:n]); failed != nil {
			w.reset()
			return
		}
		switch {
		case err == io.EOF:
			_ = to.CloseWrite()
			return
		case err != nil:
			w.reset()
			return
		}
	}
}

// moves waits while the balancer stands still.
func (b *balancer) moves() {
	b.mu.Lock()
	still := b.still
	b.mu.Unlock()
	if still == nil {
		return
	}
	select {
	case <-still:
	case <-b.ctx.Done():
	}
}

// linked waits until something is carried, so that there is something to cut.
func (b *balancer) linked(t testing.TB) {
	t.Helper()
	eventually(t, time.Minute, "a link", func() (bool, any) { n := len(b.carried()); return n > 0, n })
}

// cut resets all that is carried now.
func (b *balancer) cut() {
	for _, w := range b.carried() {
		w.reset()
	}
}

// sever resets one side of all that is carried now. The other side receives
// nothing any more, not even the reset: its peer has vanished.
func (b *balancer) sever(near bool) {
	for _, w := range b.carried() {
		w.silent.Store(true)
		gone, other := w.far, w.near
		if near {
			gone, other = w.near, w.far
		}
		b.mu.Lock()
		b.left = append(b.left, other)
		b.mu.Unlock()
		abort(gone)
	}
}

// garble puts some bytes among those of all that is carried now, in one direction.
func (b *balancer) garble(near bool, bytes []byte) {
	for _, w := range b.carried() {
		to := w.far
		if near {
			to = w.near
		}
		b.work.Go(func() { _, _ = to.Write(bytes) }) // it waits while the reader does
	}
}

func (b *balancer) carried() []*wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.wires))
}

// stands has nothing move, old or new, until ctx ends.
func (b *balancer) stands(ctx context.Context) {
	still := make(chan struct{})
	b.mu.Lock()
	b.still = still
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	b.still = nil
	b.mu.Unlock()
	close(still)
}
