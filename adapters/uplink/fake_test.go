package uplink

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// serverName is the name in every server's certificate.
const serverName = "konnectivity.test"

// testPKI is the certificates of one test.
type testPKI struct {
	ca             *pki.CA
	server, client pki.Pair
}

// newPKI makes a CA and a certificate for each side.
func newPKI(t testing.TB) *testPKI {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	return &testPKI{
		ca:     ca,
		server: testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{serverName}, Server: true}))(t),
		client: testutil.Must(ca.Issue(pki.Leaf{CommonName: "client", Client: true}))(t),
	}
}

// Client implements ClientTLS.
func (p *testPKI) Client(serverName string, protos ...string) *tls.Config {
	return &tls.Config{RootCAs: p.ca.Pool(), Certificates: []tls.Certificate{p.client.TLS()}, ServerName: serverName,
		NextProtos: protos, ClientSessionCache: tls.NewLRUClientSessionCache(4), MinVersion: tls.VersionTLS12}
}

// fakeServer is a small konnectivity server: mTLS on loopback, link and CONNECT told
// apart by ALPN, and destinations reached by a Dialer of the test's choice.
type fakeServer struct {
	ID      string          // that it goes by; empty: none
	Protos  []string        // what ALPN offers; nil: link and http/1.1
	Dialer  tunnel.Dialer   // reaches destinations; nil: direct
	Count   int             // how many servers it says there are
	Agents  link.Serving    // what it says of its agents
	NoLanes bool            // as servers of before
	Ends    *resume.Manager // of an agent, which several servers may lead to; nil: connections end with their links

	Handshakes, Resumed, Connects, Links atomic.Int64

	pki *testPKI
	tls *tls.Config // one for all, so that sessions are resumed
	l   net.Listener
	ctx context.Context
	end context.CancelFunc
	wg  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	links  map[*link.Session]bool
	peers  []link.Hello // of all links, in the order they came
	drains int
}

// direct is a tunnel.DialerFunc that dials from here.
func direct(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, f.Network, f.Address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

// newFake makes a server that is not started.
func newFake(t testing.TB) *fakeServer {
	return &fakeServer{pki: certs(t), conns: make(map[net.Conn]bool), links: make(map[*link.Session]bool)}
}

// Old makes it one that knows only CONNECT.
func (s *fakeServer) Old() *fakeServer { s.Protos = []string{"http/1.1"}; return s }

// Start listens and serves until Stop or the test's end, on a port that is its
// own until then; it returns itself.
func (s *fakeServer) Start(t testing.TB) *fakeServer {
	t.Helper()
	return s.StartAt(t, testutil.ReservedAddress(t))
}

// StartAt is Start at a given address, for a server that comes back.
func (s *fakeServer) StartAt(t testing.TB, address string) *fakeServer {
	t.Helper()
	l := testutil.Must(net.Listen("tcp", address))(t)
	if s.Protos == nil {
		s.Protos = []string{link.ALPN, "http/1.1"}
	}
	if s.Dialer == nil {
		s.Dialer = tunnel.DialerFunc(direct)
	}
	s.l = l
	s.tls = &tls.Config{Certificates: []tls.Certificate{s.pki.server.TLS()}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: s.pki.ca.Pool(), NextProtos: s.Protos}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	t.Cleanup(s.Stop)
	return s
}

// Addr is where it listens.
func (s *fakeServer) Addr() string { return s.l.Addr().String() }

// Stop closes everything at once, as a crash would, and joins.
func (s *fakeServer) Stop() {
	s.end()
	s.l.Close()
	s.Cut()
	s.wg.Wait()
}

// Cut breaks all connections and goes on listening.
func (s *fakeServer) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Drain asks clients to leave whose link is up, or in its handshake: it may be up for
// the client before it is here. Those that come later may stay.
func (s *fakeServer) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drains++
	for l := range s.links {
		l.Drain()
	}
}

// Peers are how the links introduced themselves, in the order they came.
func (s *fakeServer) Peers() []link.Hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers)
}

func (s *fakeServer) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			c.Close()
		}
		s.wg.Go(func() {
			defer func() {
				c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			}()
			s.serve(c)
		})
	}
}

func (s *fakeServer) serve(raw net.Conn) {
	c := tls.Server(raw, s.tls)
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	if c.Handshake() != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	s.Handshakes.Add(1)
	if c.ConnectionState().DidResume {
		s.Resumed.Add(1)
	}
	if c.ConnectionState().NegotiatedProtocol == link.ALPN {
		s.serveLink(c)
	} else {
		s.serveConnect(tunnel.Wrap(c))
	}
}

// Serve implements tunnel.Handler.
func (s *fakeServer) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	(&tunnel.Forwarder{Dialer: s.Dialer}).Serve(ctx, f, answer, ended)
}

func (s *fakeServer) serveLink(c net.Conn) {
	s.mu.Lock()
	drains := s.drains
	s.mu.Unlock()
	features := s.Ends.Features()
	if !s.NoLanes {
		features = append(features, link.FeatureLanes)
	}
	ses, err := link.Accept(s.ctx, c, link.Config{
		Hello:   link.Hello{Role: link.RoleServer, ID: s.ID, ServerCount: s.Count, Serving: s.Agents, Features: features},
		Handler: s.Ends.Handler(s),
		Verify: func(_ context.Context, peer link.Hello) error { // before the peer is answered
			s.mu.Lock()
			defer s.mu.Unlock()
			s.peers = append(s.peers, peer)
			return nil
		},
	})
	if err != nil {
		return
	}
	s.mu.Lock()
	s.links[ses] = true
	if s.drains != drains {
		ses.Drain()
	}
	s.mu.Unlock()
	s.Links.Add(1)
	select {
	case <-ses.Done():
	case <-s.ctx.Done():
	}
	s.mu.Lock()
	delete(s.links, ses)
	s.mu.Unlock()
	ses.Close()
}

func (s *fakeServer) serveConnect(c tunnel.Conn) {
	br := bufio.NewReader(c)
	req, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	s.Connects.Add(1)
	ahead, _ := br.Peek(br.Buffered())
	_ = tunnel.Forward(s.ctx, s, &tunnel.Flow{Request: tunnel.Request{ID: req.Header.Get("Konnectivity-Id"), Network: "tcp", Address: req.Host}},
		func(far tunnel.Conn, err error) (tunnel.Conn, error) {
			if err != nil { // as upstream's: the agent's words, and the end
				fmt.Fprintf(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\n\r\n%v", err)
				_ = c.CloseWrite()
				return nil, err
			}
			_, err = fmt.Fprint(c, "HTTP/1.1 200 Connection Established\r\n\r\n")
			return tunnel.Unread(c, ahead), err
		})
}
