package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// world is servers, the addresses that lead to them, and the names of those. Its
// connect makes sessions of them. It stands for a network in tests of the set.
type world struct {
	mu       sync.Mutex
	names    map[string][]string // host name: addresses
	routes   map[string][]string // host:port: server ids, one picked at random
	servers  map[string]*fakeServer
	count    int // what servers say
	protocol string
	latency  time.Duration
	attempts []time.Time
	dnsFails bool
	hangs    map[string]bool // addresses that swallow attempts
	open     int             // sessions not closed
}

type fakeServer struct {
	id       string
	sessions []*fakeSession
	drains   bool // says so to each new session
	dials    int  // connections that it opens by each new session
}

func newWorld() *world {
	return &world{
		names: map[string][]string{}, routes: map[string][]string{}, servers: map[string]*fakeServer{},
		protocol: protocolGRPC, latency: 10 * time.Millisecond, hangs: map[string]bool{},
	}
}

// start brings servers up.
func (w *world) start(ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if w.servers[id] == nil {
			w.servers[id] = &fakeServer{id: id}
		}
	}
}

// stop takes servers down and ends their sessions.
func (w *world) stop(ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		server := w.servers[id]
		delete(w.servers, id)
		if server != nil {
			for _, s := range server.sessions {
				s.end(io.ErrUnexpectedEOF)
			}
		}
	}
}

// balance makes one address lead to ids.
func (w *world) balance(address string, ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes[address] = slices.Clone(ids)
}

func (w *world) setCount(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count = n
	if w.protocol != protocolLink {
		return // old servers say it at the start only
	}
	for _, server := range w.servers {
		for _, s := range server.sessions {
			s.setCount(n)
		}
	}
}

func (w *world) setNames(name string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = slices.Clone(addrs)
}

func (w *world) rename(name string, i int, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name][i] = addr
}

// first is the oldest session with a server.
func (w *world) first(id string) *fakeSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[id].sessions[0]
}

// refuse makes a server take no new sessions and keep its old ones.
func (w *world) refuse(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.servers, id)
}

func (w *world) lookup(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	addrs, ok := w.names[host]
	if !ok || w.dnsFails {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var all []netip.Addr
	for _, a := range addrs {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

func (w *world) connect(ctx context.Context, to address) (session, error) {
	w.mu.Lock()
	w.attempts = append(w.attempts, time.Now())
	hangs := w.hangs[to.dial]
	w.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(w.latency):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := w.routes[to.dial]
	if len(ids) == 0 {
		return nil, &connectError{stage: "dial", err: errors.New("nobody there")}
	}
	server := w.servers[ids[rand.N(len(ids))]]
	if server == nil {
		return nil, &connectError{stage: "dial", err: errors.New("connection refused")}
	}
	s := &fakeSession{world: w, id: server.id, count: w.count, done: make(chan struct{})}
	s.streams = server.dials
	w.open++
	server.sessions = append(server.sessions, s)
	if server.drains {
		s.drains.Happen()
	}
	return s, nil
}

func (w *world) attemptsSince(t time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, at := range w.attempts {
		if !at.Before(t) {
			n++
		}
	}
	return n
}

// fakeSession is a session with a fakeServer.
type fakeSession struct {
	world *world
	id    string

	mu      sync.Mutex
	count   int
	streams int
	drained bool
	err     error
	over    bool
	closed  bool
	done    chan struct{}
	drains  tunnel.Event
}

func (s *fakeSession) ServerID() string { return s.id }

func (s *fakeSession) Key() string { return s.id }

func (s *fakeSession) Protocol() string { return s.world.protocol }

func (s *fakeSession) Done() <-chan struct{} { return s.done }

func (s *fakeSession) Drains() *tunnel.Event { return &s.drains }

func (s *fakeSession) CloseDuplicate() error { return s.Close() }

func (s *fakeSession) ServerCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

func (s *fakeSession) setCount(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count = n
}

func (s *fakeSession) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *fakeSession) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

func (s *fakeSession) setStreams(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = n
}

func (s *fakeSession) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
}

func (s *fakeSession) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over, s.err = true, err
		close(s.done)
	}
}

func (s *fakeSession) Close() error {
	s.end(nil)
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		go func() { // the caller may hold the world's lock
			s.world.mu.Lock()
			defer s.world.mu.Unlock()
			s.world.open--
		}()
	}
	return nil
}

// lines are what an agent logs at info and above.
type lines struct{ *logtest.Hook }

func (l lines) count() int { return len(l.AllEntries()) }

// since are the lines behind the first n.
func (l lines) since(n int) (all []string) {
	for _, e := range l.AllEntries()[n:] {
		all = append(all, fmt.Sprint(e.Level, ": ", e.Message, " ", e.Data))
	}
	return all
}

// bench is an agent in a world, running in a synctest bubble.
type bench struct {
	t     *testing.T
	world *world
	agent *Agent
	log   lines
	stop  func()
}

// inWorld runs test with an agent that has the default options but for tweak.
func inWorld(t *testing.T, w *world, servers []string, tweak func(*Options), test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		logger, hook := logtest.NewNullLogger()
		opts := Options{
			ID: "agent", Servers: servers, Log: logger,
			TLS:    func(string, ...string) *tls.Config { return nil },
			Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, errors.New("unused") }),
		}
		if tweak != nil {
			tweak(&opts)
		}
		a := testutil.Must(New(opts))(t)
		a.set.connect = w.connect
		a.set.resolver.lookup = w.lookup
		stop := testutil.Start(t, func(ctx context.Context) { _ = a.Run(ctx) })
		b := &bench{t: t, world: w, agent: a, log: lines{hook}, stop: stop}
		defer b.stop()
		test(b)
		b.stop()
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		testutil.Equal(t, w.open, 0, "sessions were not closed")
	})
}

func (b *bench) connected() []string {
	var ids []string
	for _, s := range b.agent.Servers() {
		ids = append(ids, s.ID)
	}
	return ids
}

// within waits until exactly want are connected, and returns how long it took.
func (b *bench) within(bound time.Duration, want ...string) time.Duration {
	b.t.Helper()
	slices.Sort(want)
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if slices.Equal(b.connected(), want) {
			return time.Since(start)
		}
		testutil.Requires(b.t, time.Since(start) <= bound,
			"after %v connected to %v, want %v; log:\n%v", bound, b.connected(), want, b.log.since(0))
	}
}
