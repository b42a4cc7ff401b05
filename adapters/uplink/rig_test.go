package uplink

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// names is a name server and a network: addresses of the server's name, and
// what listens behind each.
type names struct {
	mu     sync.Mutex
	listen map[string]string // ip -> where it really is
	order  []string
	dials  atomic.Int64
}

func (n *names) set(pairs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listen, n.order = make(map[string]string), nil
	for i := 0; i < len(pairs); i += 2 {
		n.listen[pairs[i]] = pairs[i+1]
		n.order = append(n.order, pairs[i])
	}
}

func (n *names) lookup(context.Context, string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []netip.Addr
	for _, ip := range n.order {
		out = append(out, netip.MustParseAddr(ip))
	}
	if out == nil {
		return nil, &net.DNSError{IsNotFound: true}
	}
	return out, nil
}

func (n *names) dial(ctx context.Context, by *net.Dialer, address string) (net.Conn, error) {
	n.dials.Add(1)
	host, _, _ := net.SplitHostPort(address)
	n.mu.Lock()
	real, ok := n.listen[host]
	n.mu.Unlock()
	if !ok { // a black hole
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return by.DialContext(ctx, "tcp", real)
}

func client(t testing.TB, n *names, change func(*Options)) *Server {
	t.Helper()
	opt := Options{Address: "konnectivity:8090", ServerName: serverName, TLS: certs(t), Lookup: n.lookup, DialTCP: n.dial, Software: "test/1"}
	if change != nil {
		change(&opt)
	}
	s := testutil.Must(New(opt))(t)
	t.Cleanup(s.Close)
	return s
}

func at(pairs ...string) *names { n := new(names); n.set(pairs...); return n }

// roundTrip sends a message through and wants it back.
func roundTrip(t testing.TB, d tunnel.Dialer) error {
	t.Helper()
	return roundTripTo(t, d, testutil.Echo(t))
}

// roundTripTo does it by a given address, with a half-close.
func roundTripTo(t testing.TB, d tunnel.Dialer, address string) error {
	t.Helper()
	c, err := d.Dial(testutil.Context(t), tunnel.NewFlow("tcp", address))
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	want := strings.Repeat("there and back ", 1000)
	if _, err := io.WriteString(c, want); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != want {
		err = fmt.Errorf("got %d bytes of %d", len(got), len(want))
	}
	return err
}

// manyRoundTrips makes n at once.
func manyRoundTrips(t *testing.T, d tunnel.Dialer, address string, n int) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { testutil.Succeeds(t, roundTripTo(t, d, address), "a round trip") })
	}
	wg.Wait()
}

func run(t testing.TB, s *Server) {
	ctx, cancel := context.WithCancel(context.Background())
	done := wait.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); <-done })
}

// runLinked is run until there are that many links.
func runLinked(t testing.TB, s *Server, links int) {
	t.Helper()
	run(t, s)
	testutil.Eventually(t, fmt.Sprint(links, " links"), func() bool { return s.Stats().Links == links })
	testutil.NoError(t, s.Ready())
}

// wantBy makes some dials, which are to go by the server with that id.
func wantBy(t *testing.T, s *Server, id string) {
	t.Helper()
	for range 3 {
		f := tunnel.NewFlow("tcp", testutil.Echo(t))
		c := testutil.Must(s.Dial(t.Context(), f))(t)
		t.Cleanup(func() { _ = c.Close() })
		testutil.Equal(t, f.Hop.ID, id, "the server dialed by")
	}
}

// newAgent is the ends of an agent, to which several servers may lead.
func newAgent(t *testing.T) *resume.Manager {
	ends := resume.New(resume.Options{Window: time.Minute})
	t.Cleanup(func() { ends.Close(); ends.Wait() })
	return ends
}

// resuming is a server that leads to the agent whose ends are given.
func resuming(t testing.TB, agent *resume.Manager) *fakeServer {
	s := newFake(t)
	s.Ends = agent
	return s
}

func says(t *testing.T, c tunnel.Conn, text string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	testutil.NoError(t, testutil.Err(io.WriteString(c, text)))
	got := make([]byte, len(text))
	testutil.NoError(t, testutil.Err(io.ReadFull(c, got)))
	testutil.Equal(t, string(got), text, "the echo")
}

// shared is the PKI of all servers and clients, but of strangers.
var shared struct {
	sync.Once
	*testPKI
}

func certs(t testing.TB) *testPKI {
	shared.Do(func() { shared.testPKI = newPKI(t) })
	return shared.testPKI
}
