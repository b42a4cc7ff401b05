package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"konnectivity/agent/egress"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// patience bounds what a test waits for.
const patience = time.Minute

// peer is a server's side of an agent's connection, of either protocol.
type peer interface {
	tunnel.Dialer
	Ends() *tunnel.Event
	Drains() *tunnel.Event
	Close() error
}

// arrival is an agent that a test server took.
type arrival struct {
	peer
	protocol, id, identifiers, token string
}

// testServer is a konnectivity server on loopback as far as an agent sees one:
// TLS, then gRPC as upstream's server has it, then the link if it is a new one.
type testServer struct {
	t      *testing.T
	id     string
	ca     *pki.CA
	config *tls.Config
	lis    net.Listener
	grpc   *grpc.Server
	legacy *legacy.AgentService
	done   sync.WaitGroup

	arrivals chan arrival

	mu     sync.Mutex
	hellos [][]string // ALPN offers
	names  []string   // that were asked for
	refuse error
	count  int
	links  []*link.Session
	closed bool

	takesAPI bool     // it names the feature
	api      error    // it has no API server; nil: it has
	asked    []string // for the API server: network and address

	accepted *resume.Manager // holds what the API server has; nil: it ends with its link
}

// newTestServer serves until the test ends. An old one knows no link.
func newTestServer(t *testing.T, ca *pki.CA, id string, old bool) *testServer {
	t.Helper()
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	s := &testServer{t: t, id: id, ca: ca, arrivals: make(chan arrival, 16), count: 1}
	s.config = &tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}
	if !old {
		s.config.NextProtos = []string{link.ALPN, "h2"}
	}
	s.config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hellos = append(s.hellos, slices.Clone(hello.SupportedProtos))
		s.names = append(s.names, hello.ServerName)
		return nil, nil
	}
	s.start(testutil.ReservedAddress(t), old) // some start there again
	t.Cleanup(s.close)
	return s
}

func (s *testServer) start(address string, old bool) {
	var err error
	s.lis, err = net.Listen("tcp", address)
	testutil.NoError(s.t, err)
	s.legacy = legacy.NewAgentService(legacy.AgentServiceConfig{
		ServerID: s.id, ServerCount: func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.count },
		Accept: func(_ context.Context, p *legacy.AgentPeer) (func(), error) {
			if err := s.refusal(); err != nil {
				return nil, err
			}
			s.arrived(arrival{p, protocolGRPC, p.ID(), p.Identifiers(), p.Token()})
			return nil, nil
		},
	})
	options := []grpc.ServerOption{legacy.ServerCodec(), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 30 * time.Second, PermitWithoutStream: true})}
	if old {
		s.grpc = grpc.NewServer(append(options, grpc.Creds(credentials.NewTLS(s.config)))...)
		s.legacy.Register(s.grpc)
		s.done.Go(func() { _ = s.grpc.Serve(s.lis) })
		return
	}
	s.grpc = grpc.NewServer(options...)
	s.legacy.Register(s.grpc)
	h2 := &connListener{conns: make(chan net.Conn), addr: s.lis.Addr(), closed: make(chan struct{})}
	s.done.Go(func() { _ = s.grpc.Serve(h2) })
	s.done.Go(func() { s.accept(h2) })
}

func (s *testServer) accept(h2 *connListener) {
	for {
		raw, err := s.lis.Accept()
		if err != nil {
			return
		}
		s.done.Go(func() {
			conn := tls.Server(link.Buffered(raw), s.config)
			ctx := testutil.Context(s.t)
			if conn.HandshakeContext(ctx) != nil {
				_ = raw.Close()
				return
			}
			if conn.ConnectionState().NegotiatedProtocol != link.ALPN {
				h2.give(conn)
				return
			}
			s.serveLink(ctx, conn)
		})
	}
}

func (s *testServer) serveLink(ctx context.Context, conn net.Conn) {
	s.mu.Lock()
	hello := link.Hello{Role: link.RoleServer, ID: s.id, ServerCount: s.count, Features: []string{link.FeatureLanes, link.FeatureResume}}
	cfg := link.Config{}
	if s.takesAPI {
		hello.Features, cfg.Handler = append(hello.Features, link.FeatureAPI), s.accepted.Handler(s.says())
	}
	s.mu.Unlock()
	var met link.Hello
	cfg.Hello, cfg.Verify = hello, func(_ context.Context, peer link.Hello) error {
		met = peer
		return s.refusal()
	}
	l, err := link.Accept(ctx, conn, cfg)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.links = append(s.links, l)
	closed := s.closed
	s.mu.Unlock()
	if closed {
		_ = l.Close()
	}
	s.arrived(arrival{l, protocolLink, met.ID, met.Identifiers, met.Token})
}

func (s *testServer) arrived(a arrival) {
	select {
	case s.arrivals <- a:
	default: // more than the test cares for
	}
}

func (s *testServer) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuse
}

func (s *testServer) close() {
	s.mu.Lock()
	links := s.links
	done := s.closed
	s.closed = true
	s.mu.Unlock()
	if done {
		return
	}
	_ = s.lis.Close()
	for _, l := range links {
		_ = l.Close()
	}
	_ = s.legacy.Close()
	s.grpc.Stop()
	s.done.Wait()
}

func (s *testServer) address() string { return s.lis.Addr().String() }

func (s *testServer) next() arrival {
	s.t.Helper()
	return testutil.Receive(s.t, "an agent comes", s.arrivals)
}

// connListener is a listener that is handed its connections.
type connListener struct {
	conns  chan net.Conn
	addr   net.Addr
	once   sync.Once
	closed chan struct{}
}

func (l *connListener) give(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *connListener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (l *connListener) Addr() net.Addr { return l.addr }

// newCA makes a CA, and the TLS function of an agent that has a certificate of
// it.
func newCA(t *testing.T) (*pki.CA, func(string, ...string) *tls.Config) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "agent", Client: true}))(t)
	return ca, func(name string, protos ...string) *tls.Config {
		return &tls.Config{ServerName: name, NextProtos: protos, RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair.TLS()}, MinVersion: tls.VersionTLS12}
	}
}

// testOptions are options of an agent that may dial loopback.
func testOptions(config func(string, ...string) *tls.Config, servers ...string) Options {
	return Options{
		ID: "agent-1", Identifiers: "host=node1", Servers: servers, TLS: config,
		Dialer: egress.New(egress.Options{}), Registerer: prometheus.NewRegistry(),
	}
}

// newServed is a server, and the options of an agent that knows it alone.
func newServed(t *testing.T, id string, old bool) (*testServer, Options) {
	t.Helper()
	ca, config := newCA(t)
	s := newTestServer(t, ca, id, old)
	return s, testOptions(config, s.address())
}

// connectOnce makes a session with server, closed at the end of the test.
func connectOnce(t *testing.T, opts Options) (session, error) {
	t.Helper()
	a := testutil.Must(New(opts))(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel() // a session outlives it
	addresses, err := a.set.resolver.resolve(ctx)
	testutil.Requires(t, err == nil && len(addresses) != 0, "resolve: %v, %v", addresses, err)
	s, err := a.set.connect(ctx, addresses[0])
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// runAgent runs an agent until the test ends, or until stop is called, which returns what
// Run does.
func runAgent(t *testing.T, opts Options) (a *Agent, stop func() error) {
	t.Helper()
	a = testutil.Must(New(opts))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := testutil.Later(func() error { return a.Run(ctx) })
	stop = sync.OnceValue(func() error { cancel(); return testutil.Receive(t, "the agent ends", done) })
	t.Cleanup(func() { _ = stop() })
	return a, stop
}

// wantEcho carries bytes over a dial.
func wantEcho(t *testing.T, d tunnel.Dialer, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	c := testutil.Must(d.Dial(ctx, tunnel.NewFlow("tcp", address)))(t)
	cancel()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	testutil.Must(io.WriteString(c, "hello"))(t)
	got := make([]byte, 5)
	_, err := io.ReadFull(c, got)
	testutil.Requires(t, err == nil && string(got) == "hello", "echo gave %q, %v", got, err)
}

// connectProxy is an HTTP proxy that counts its CONNECTs.
func connectProxy(t *testing.T) (address string, connects func() int) {
	t.Helper()
	return connectProxyOn(t, testutil.Listen(t))
}

func connectProxyOn(t *testing.T, l net.Listener) (address string, connects func() int) {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		far, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		near, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			_ = far.Close()
			return
		}
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		_ = (&tunnel.Relay{A: tunnel.Wrap(near), B: tunnel.Wrap(far)}).Run(t.Context())
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return l.Addr().String(), func() int { return int(n.Load()) }
}

var errRefusal = errors.New("this token is not accepted")
