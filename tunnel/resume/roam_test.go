package resume_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// memory is the budget of each end, more than a test needs.
const memory = 1 << 30

// world is an opener, some servers and an agent, all in one process and linked
// over loopback, with links that can be cut.
type world struct {
	t       testing.TB
	opener  *resume.Manager
	agent   *resume.Manager
	before  []*resume.Manager // agents that were succeeded
	dest    string            // where the agent dials
	deaf    bool              // or it has a destination that takes nothing
	serve   tunnel.Handler    // what the agent serves instead; nil: it dials
	memory  *link.Budget      // the agent's
	budget  *link.Budget      // the servers'; nil: all that they want
	client  *tunnel.Client    // for whom these dial the agent; nil: they do not tell
	atMost  int               // its Options.MaxDetached
	allow   func(*tunnel.Flow, net.Addr) error
	wire    func() (a, b net.Conn) // what links are over; nil: TCP
	wg      sync.WaitGroup
	servers []*server
}

// The links of a server.
const (
	toOpener = true
	toAgent  = false
)

type server struct {
	w         *world
	mu        sync.Mutex
	near, far hop // to the opener and to the agent; zero: there is none
}

// hop is a link between an end, a, and a server, b.
type hop struct {
	wire *wire // that it is over; nil: it is over something else
	a, b *link.Session
}

// newHop links an end and a server over a connection; the handlers serve what the other side
// opens.
func newHop(ca, cb net.Conn, end, server tunnel.Handler, budget *link.Budget) (h hop) {
	config := func(role link.Role, serves tunnel.Handler, budget *link.Budget) link.Config {
		return link.Config{Budget: budget, Clients: new(link.Clients), Hello: link.Hello{Role: role, ID: "x", Features: []string{link.FeatureResume}}, Handler: serves}
	}
	role := link.RoleClient
	if end != nil {
		role = link.RoleAgent
	}
	if on, ok := ca.(*wireEnd); ok {
		h.wire = on.wire
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { h.b, _ = link.Accept(context.Background(), cb, config(link.RoleServer, server, budget)) })
	var err error
	h.a, err = link.Connect(context.Background(), ca, config(role, end, nil))
	accepting.Wait()
	if err != nil || h.b == nil {
		panic(fmt.Sprint("no link: ", err)) // also on goroutines that are not the test's
	}
	return h
}

// close closes both ends of a link.
func (h hop) close() {
	if h.wire != nil {
		h.wire.cut()
	}
	_ = h.b.Close()
	_ = h.a.Close()
}

func newWorld(t testing.TB, servers int, window time.Duration) *world {
	w := &world{t: t}
	w.begin(servers, window)
	return w
}

func (w *world) begin(servers int, window time.Duration) {
	w.opener = resume.New(resume.Options{Window: window, Budget: link.NewBudget(memory)})
	w.memory = link.NewBudget(memory)
	w.agent = resume.New(resume.Options{Window: window, Budget: w.memory, MaxDetached: w.atMost, Allow: w.allow})
	for range servers {
		s := &server{w: w}
		w.servers = append(w.servers, s)
		s.linkNear()
		s.linkFar()
	}
	w.t.Cleanup(w.close)
}

func (w *world) close() {
	w.opener.Close()
	for _, m := range append(w.before, w.agent) {
		m.Close()
	}
	for _, s := range w.servers {
		s.cut(toOpener)
		s.cut(toAgent)
	}
	w.opener.Wait()
	for _, m := range append(w.before, w.agent) {
		m.Wait()
	}
	w.wg.Wait()
}

func (w *world) pipe() (net.Conn, net.Conn) {
	if w.wire != nil {
		return w.wire()
	}
	return testutil.Pair(w.t)
}

func (s *server) linkNear() {
	ca, cb := s.w.pipe()
	s.set(toOpener, newHop(ca, cb, nil, resume.Splice(&tunnel.Forwarder{Dialer: tunnel.DialerFunc(s.dialFar)}), s.w.budget))
}

func (s *server) linkFar() {
	serve := s.w.serve
	if serve == nil {
		serve = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(s.w.dialDest)}
	}
	ca, cb := s.w.pipe()
	s.set(toAgent, newHop(ca, cb, s.w.agent.Handler(serve), nil, s.w.budget))
}

// link makes one of the server's links.
func (s *server) link(near bool) {
	if near {
		s.linkNear()
	} else {
		s.linkFar()
	}
}

// relink cuts one of the server's links, and makes it again.
func (s *server) relink(near bool) {
	s.cut(near)
	s.link(near)
}

// get returns one of the server's links.
func (s *server) get(near bool) hop {
	s.mu.Lock()
	defer s.mu.Unlock()
	if near {
		return s.near
	}
	return s.far
}

// set puts a link in the place of one of the server's, which it returns.
func (s *server) set(near bool, to hop) (before hop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.far
	if near {
		at = &s.near
	}
	before, *at = *at, to
	return before
}

// listen has the agent dial a listener of the test's.
func (w *world) listen(t testing.TB) net.Listener {
	t.Helper()
	l := testutil.Listen(t)
	w.dest = l.Addr().String()
	return l
}

func (w *world) dialDest(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if w.deaf {
		c, _ := net.Pipe()
		return tunnel.Wrap(c), nil
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", w.dest)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

func (s *server) dialFar(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	f.Client = s.w.client
	return dialAgent(ctx, s.get(toAgent).b, f)
}

// dialAgent is a server's way to the agent by far, nil while there is none. What fails
// there is told as a server's registry has it.
func dialAgent(ctx context.Context, far *link.Session, f *tunnel.Flow) (tunnel.Conn, error) {
	if far == nil {
		return nil, &tunnel.DialError{Failure: tunnel.FailAgentLost}
	}
	c, err := far.Dial(ctx, f)
	if tunnel.FailureOf(err).Retryable() {
		err = &tunnel.DialError{Failure: tunnel.FailAgentLost}
	}
	return c, err
}

// cut ends one of the server's links: one end closes it, and the other notices.
func (s *server) cut(near bool) {
	h := s.set(near, hop{})
	if h.a == nil {
		return
	}
	closes, notices := h.b, h.a
	if near {
		closes, notices = h.a, h.b
	}
	if h.wire != nil {
		h.wire.cut()
	}
	_ = closes.CloseWith(link.GoAwayInternal, "cut")
	s.w.wg.Go(func() {
		<-notices.Done()
		_ = notices.Close()
	})
}

// Dial is the opener's way out: any server it is linked to.
func (w *world) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	for _, i := range rand.Perm(len(w.servers)) {
		near := w.servers[i].get(toOpener).a
		if near == nil {
			continue
		}
		c, err := near.Dial(ctx, f)
		if err == nil || !tunnel.FailureOf(err).Retryable() {
			return c, err
		}
	}
	return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable}
}

// mess cuts links until stop is closed. Behind each third cut it waits for calm.
func (w *world) mess(stop <-chan struct{}, pause time.Duration) (cuts int) {
	for {
		if cuts%3 == 2 {
			w.calm(stop)
		}
		select {
		case <-stop:
			return cuts
		case <-time.After(rand.N(pause)):
		}
		s := w.servers[rand.IntN(len(w.servers))]
		near := rand.IntN(2) == 0
		s.cut(near)
		cuts++
		if rand.IntN(2) == 0 {
			time.Sleep(rand.N(50 * time.Millisecond))
		}
		s.link(near)
	}
}

// calm waits until all connections have a carrier and something has passed, or stop is closed.
// On a busy machine, a resume may take longer than the time between two losses: without calm,
// nothing would pass, and connections would be given up. Since there may be nothing to send, or
// an end that is not resumed any more, the wait is bounded: by a number of looks, which take
// longer on a busy machine.
func (w *world) calm(stop <-chan struct{}) {
	figures := func() resume.Stats { return w.opener.Stats().Plus(w.agent.Stats()) }
	first, attached := int64(0), 0
	for range 100 {
		switch now := figures(); {
		case now.Detached > 0:
			attached = 0
		case attached == 0:
			first, attached = now.Kept, 1
		case now.Kept != first || attached == 20:
			return
		default:
			attached++
		}
		if tunnel.Closed(stop) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// disturbed runs transfers, both ways and through relays like those of the programs, to
// their end, while disturb is at work. Short tests send only a part.
func disturbed(t *testing.T, disturb func(w *world, over <-chan struct{})) *world {
	const conns = 8
	size := int64(24 << 20)
	if testing.Short() {
		size /= 4
	}
	w := newWorld(t, 2, 8*time.Second) // an end whose last acknowledgement was lost waits for it
	w.dest = hashEcho(t)
	front := tunnel.Forwarder{Dialer: w.opener.Dialer(w)}
	var running sync.WaitGroup
	for i := range conns {
		running.Go(func() {
			testutil.Succeeds(t, w.transfer(&front, size, uint64(i)), "transfer %d", i)
		})
	}
	eventually(t, func() bool { return w.opener.Len() == conns }) // a dial is not resumed
	over := make(chan struct{})
	go func() { running.Wait(); close(over) }()
	disturb(w, over)
	<-over
	// An acknowledgement that was lost with the last carrier is not missed at the
	// other end, which waits for its window.
	testutil.Within(t, 40*time.Second, "no end is left", func() bool { return w.opener.Len() == 0 && w.agent.Len() == 0 })
	return w
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	testutil.Within(t, 20*time.Second, "what is to come", ok)
}

// hashEcho listens for connections; it reads to the end, then answers as many
// bytes as came with the hash of those before them.
func hashEcho(t testing.TB) string {
	return testutil.Serve(t, func(c *net.TCPConn) {
		h := sha256.New()
		n, err := io.Copy(h, c)
		if err != nil {
			return
		}
		_, _ = c.Write(h.Sum(nil))
		_, _ = io.CopyN(c, rand.NewChaCha8([32]byte{1}), n)
	})
}

func (w *world) transfer(front *tunnel.Forwarder, size int64, seed uint64) error {
	a, b := w.pipe()
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		done <- tunnel.Forward(context.Background(), front, tunnel.NewFlow("tcp", "dest:1"), func(tunnel.Conn, error) (tunnel.Conn, error) {
			return tunnel.Wrap(b), nil
		})
	}()
	sent := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(a, sent), rand.NewChaCha8([32]byte{byte(seed)}), size); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	_ = a.(*net.TCPConn).CloseWrite()
	var sum [32]byte
	if _, err := io.ReadFull(a, sum[:]); err != nil {
		return fmt.Errorf("the hash: %w", err)
	}
	if sum != [32]byte(sent.Sum(nil)) {
		return errors.New("other bytes arrived")
	}
	want, got := sha256.New(), sha256.New()
	_, _ = io.CopyN(want, rand.NewChaCha8([32]byte{1}), size)
	if n, err := io.Copy(got, a); err != nil || n != size {
		return fmt.Errorf("received %d bytes: %w", n, err)
	}
	if [32]byte(got.Sum(nil)) != [32]byte(want.Sum(nil)) {
		return errors.New("other bytes came back")
	}
	return <-done
}
