package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/files"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// New and old servers, by each mode: the right protocol, one TCP connection,
// and bytes that flow.
func TestNegotiation(t *testing.T) {
	echo := testutil.Echo(t)
	for _, c := range []struct {
		name string
		old  bool
		mode link.Mode
		want string // "" for a refusal
	}{
		{"new server", false, link.Auto, protocolLink},
		{"new server, default", false, "", protocolLink},
		{"new server, off", false, link.Off, protocolGRPC},
		{"new server, require", false, link.Require, protocolLink},
		{"old server", true, link.Auto, protocolGRPC},
		{"old server, off", true, link.Off, protocolGRPC},
		{"old server, require", true, link.Require, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, opts := newServed(t, "server-1", c.old)
			server.count = 3
			opts.Link, opts.ALPN = c.mode, []string{"konnectivity"}
			opts.Token = func() (string, error) { return "t0ken", nil }
			s, err := connectOnce(t, opts)
			if c.want == "" {
				testutil.Requires(t, err != nil, "connected")
				return
			}
			testutil.NoError(t, err)
			testutil.Holds(t, s.Protocol() == c.want && s.ServerID() == "server-1" && s.ServerCount() == 3,
				"got %s to %q, count %d", s.Protocol(), s.ServerID(), s.ServerCount())
			a := server.next()
			testutil.Holds(t, a.protocol == c.want && a.id == "agent-1" && a.identifiers == "host=node1" &&
				a.token == "t0ken", "the server met %+v", a)
			wantEcho(t, a, echo)
			testutil.Equal(t, len(server.hellos), 1, "TLS handshakes for one session")
			offer := server.hellos[0]
			testutil.Holds(t, offer[len(offer)-1] == "konnectivity", "offered %v; the operator's protocol is missing", offer)
			testutil.Equal(t, slices.Contains(server.hellos[0], link.ALPN), c.mode != link.Off,
				"mode %q offered %v", c.mode, server.hellos[0])
			s.Drain()
			testutil.Receive(t, "the server is told of the drain", a.Drains().Done())
			_ = s.Close()
			testutil.Receive(t, "the server sees the end", a.Ends().Done())
			testutil.Holds(t, s.Err() == nil, "closed in order, but %v", s.Err())
		})
	}
}

// The name in the handshake is also the name that is verified, whatever host is
// dialed.
func TestServerName(t *testing.T) {
	for _, old := range []bool{true, false} {
		server, opts := newServed(t, "server-1", old)
		for name, asked := range map[string]string{"": "", "localhost": "localhost", "elsewhere.test": "elsewhere.test"} {
			opts.ServerName, opts.Registerer = name, nil
			s, err := connectOnce(t, opts)
			if err == nil {
				_ = s.Close()
			}
			testutil.Equal(t, err == nil, name != "elsewhere.test", "trusted; old %v: asked for %q: %v", old, name, err)
			server.mu.Lock()
			testutil.Equal(t, server.names[len(server.names)-1], asked, "old %v: asked for", old)
			server.mu.Unlock()
		}
	}
}

func TestRefusedByServer(t *testing.T) {
	for _, old := range []bool{true, false} {
		server, opts := newServed(t, "server-1", old)
		server.refuse = errRefusal
		_, err := connectOnce(t, opts)
		var typed *connectError
		testutil.Holds(t, errors.As(err, &typed) && typed.stage == "refused" &&
			strings.Contains(err.Error(), errRefusal.Error()), "old %v: got %v", old, err)
	}
}

func TestConnectFailures(t *testing.T) {
	ca, config := newCA(t)
	_, stranger := newCA(t)
	server := newTestServer(t, ca, "server-1", false)
	anonymous := func(name string, protos ...string) *tls.Config {
		c := config(name, protos...)
		c.Certificates = nil
		return c
	}
	otherName := func(string, ...string) *tls.Config { return config("elsewhere.example", "h2") }
	for name, c := range map[string]struct {
		config  func(string, ...string) *tls.Config
		address string
		token   func() (string, error)
		stage   string
	}{
		"nothing listens":       {config, testutil.Refusing(t), nil, "dial"},
		"unknown CA":            {stranger, server.address(), nil, "tls"},
		"wrong name":            {otherName, server.address(), nil, "tls"},
		"without a certificate": {anonymous, server.address(), nil, "refused"}, // TLS 1.3 tells after the handshake
		"token cannot be read":  {config, server.address(), files.Token("/nonexistent"), "token"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []link.Mode{link.Auto, link.Off} {
				opts := testOptions(c.config, c.address)
				opts.Link, opts.Token, opts.Trusted = mode, c.token, "--ca-cert=x"
				_, err := connectOnce(t, opts)
				var typed *connectError
				testutil.Holds(t, errors.As(err, &typed) && typed.stage == c.stage,
					"mode %s: got %v, want stage %s", mode, err, c.stage)
				testutil.Equal(t, strings.HasSuffix(err.Error(), "which is not in --ca-cert=x"), name == "unknown CA", "the CAs are named: %v", err)
			}
		})
	}
}

// An agent that asks for a name without a server, as after its tenant was removed,
// says what to do.
func TestNameUnknownToTheServer(t *testing.T) {
	_, config := newCA(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return nil, nil // crypto/tls then says unrecognized_name
	}})
	testutil.NoError(t, err)
	refused := testutil.Later(func() error {
		conn, err := l.Accept()
		if err == nil {
			err = conn.(*tls.Conn).HandshakeContext(t.Context())
			_ = conn.Close()
		}
		return err
	})
	_, err = connectOnce(t, testOptions(config, l.Addr().String()))
	_ = l.Close()
	if <-refused == nil || err == nil || !strings.Contains(err.Error(), "unrecognized name; the server does not know the name it was asked for: check --server-name") {
		t.Errorf("the agent says %v", err)
	}
}

// A server that accepts and then says nothing costs an attempt its bound and no
// more.
func TestSilentServer(t *testing.T) {
	_, config := newCA(t)
	l := testutil.Listen(t)
	c := newConnector(testOptions(config, "x:1"), &tunnel.Forwarder{}, nil, nil)
	ctx := testutil.ContextFor(t, 200*time.Millisecond)
	start := time.Now()
	_, err := c.connect(ctx, address{dial: l.Addr().String(), host: "localhost"})
	testutil.Requires(t, err != nil, "connected")
	testutil.AtMost(t, time.Since(start), patience/2, "an attempt took")
}

// The token is read at each connect.
func TestTokenRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, old := range []bool{true, false} {
		server, opts := newServed(t, "server-1", old)
		opts.Token = files.Token(path)
		c := newConnector(opts, &tunnel.Forwarder{Dialer: opts.Dialer}, mustMetrics(t), nil)
		for _, token := range []string{"first", "second"} {
			testutil.NoError(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			s, err := c.connect(ctx, address{dial: server.address(), host: "localhost"})
			cancel()
			testutil.NoError(t, err)
			testutil.Equal(t, server.next().token, token, "the server met token")
			_ = s.Close()
		}
	}
}

// Whatever an agent takes by its flags and files, it can introduce itself by either protocol.
func TestTheLongestIntroduction(t *testing.T) {
	token := strings.Repeat("t", files.MaxToken)
	for _, old := range []bool{true, false} {
		_, opts := newServed(t, "server-1", old)
		opts.ID = strings.Repeat("i", link.MaxID) // no server of ours takes more
		opts.Identifiers = strings.Repeat("host=a&", MaxIdentity/len("host=a&")) + "&"
		opts.Lanes = lanes.MaxLanes
		opts.Token = func() (string, error) { return token, nil }
		testutil.Requires(t, len(opts.Identifiers) == MaxIdentity, "not the longest")
		testutil.Succeeds(t, testutil.Err(connectOnce(t, opts)), "old server %v", old)
	}
}

// A server's id is bounded, by either protocol. Ours have at most link.MaxID bytes, and other
// servers that speak gRPC may have more.
func TestTheLongestServerID(t *testing.T) {
	for _, old := range []bool{true, false} {
		for more, ok := range []bool{true, false} {
			most := link.MaxID
			if old {
				most = MaxIdentity
			}
			_, opts := newServed(t, strings.Repeat("i", most+more), old)
			_, err := connectOnce(t, opts)
			testutil.Equal(t, err == nil, ok, "old server %v, %d bytes too many (%.200v)", old, more, err)
		}
	}
}

// HTTPS_PROXY leads to servers, as it does with upstream's agent.
func TestThroughProxy(t *testing.T) {
	ca, config := newCA(t)
	proxy, connects := connectProxy(t)
	for _, old := range []bool{true, false} {
		server := newTestServer(t, ca, "server-1", old)
		_, port, _ := net.SplitHostPort(server.address())
		opts := testOptions(config, "localhost:"+port)
		opts.Proxy = func(*url.URL) (*url.URL, error) { return &url.URL{Scheme: "http", Host: proxy}, nil }
		before := connects()
		testutil.Must(connectOnce(t, opts))(t)
		server.next()
		testutil.Equal(t, connects(), before+1, "CONNECTs")
	}
}

// The bound of a server's TCP is not one of a proxy's, for which names are looked up on
// the way.
func TestProxyTimeout(t *testing.T) {
	defer func(was time.Duration) { dialTimeout = was }(dialTimeout)
	dialTimeout = 0
	far := testutil.Listen(t)
	_, config := newCA(t)
	proxy, _ := connectProxy(t)
	c := newConnector(testOptions(config, "x:1"), &tunnel.Forwarder{}, nil, nil)
	ctx := testutil.Context(t)
	conn := testutil.Must(c.dial(ctx, address{dial: far.Addr().String(), proxy: &url.URL{Scheme: "http", Host: proxy}}))(t)
	_ = conn.Close()
	testutil.Fails(t, testutil.Err(c.dial(ctx, address{dial: far.Addr().String()})), "a server has no bound")
}

// A proxy that is not trusted, or wants authentication, is not mistaken for the
// server, and its password is not told.
func TestProxyTroubleIsToldApart(t *testing.T) {
	_, config := newCA(t)
	wants := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusProxyAuthRequired) }))
	defer wants.Close()
	secure := httptest.NewTLSServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer secure.Close()
	for proxy, says := range map[string]string{
		secure.URL: `the proxy on the way to the server is not trusted: its certificate was issued by "O=Acme Co", which is not in the system's CAs`,
		wants.URL:  "cannot reach the server: ",
	} {
		u, err := url.Parse(proxy)
		testutil.NoError(t, err)
		u.User = url.UserPassword("me", "hunter2")
		opts := testOptions(config, "server.example:8091")
		opts.Proxy = func(*url.URL) (*url.URL, error) { return u, nil }
		_, err = connectOnce(t, opts)
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "hunter2"),
			"%v, want it to say %q", err, says)
		testutil.Holds(t, proxy != wants.URL || err != nil && strings.Contains(err.Error(), "it wants a user and password"),
			"407 is told as %v", err)
	}
}

// Asking an old server whether it lives must not make it drop the agent for too
// many pings (it allows one in 30 s).
func TestAskingOldServerOften(t *testing.T) {
	t.Parallel() // it waits
	server, opts := newServed(t, "server-1", true)
	opts.Keepalive = 20 * time.Millisecond
	s := testutil.Must(connectOnce(t, opts))(t)
	a := server.next()
	select {
	case <-s.Done():
		t.Fatalf("the session ended: %v", s.Err())
	case <-time.After(time.Second): // some 50 questions
	}
	wantEcho(t, a, testutil.Echo(t))
}

// The whole agent against three servers, two of them old: it connects to all,
// serves dials, comes back after a restart, drains.
func TestAgent(t *testing.T) {
	t.Parallel() // it waits
	ca, config := newCA(t)
	servers := []*testServer{newTestServer(t, ca, "a", true), newTestServer(t, ca, "b", false), newTestServer(t, ca, "c", true)}
	var addresses []string
	for _, s := range servers {
		s.count = 3
		addresses = append(addresses, s.address())
	}
	a, stop := runAgent(t, testOptions(config, addresses...))
	echo := testutil.Echo(t)
	for _, s := range servers {
		wantEcho(t, s.next(), echo)
	}
	testutil.Eventually(t, "three servers, and ready", func() bool { return len(a.Servers()) == 3 && a.Ready() == nil })

	servers[0].close()
	again := newReplacement(t, ca, servers[0], "a2")
	wantEcho(t, again.next(), echo)
	testutil.Eventually(t, "three servers again", func() bool { return len(a.Servers()) == 3 })

	testutil.NoError(t, stop())
	testutil.Holds(t, a.Ready() != nil, "ready after the end")
}

// newReplacement is a new server at the address of one that was closed.
func newReplacement(t *testing.T, ca *pki.CA, old *testServer, id string) *testServer {
	t.Helper()
	s := &testServer{t: t, id: id, ca: ca, config: old.config, arrivals: make(chan arrival, 16), count: 3}
	s.start(old.address(), true)
	t.Cleanup(s.close)
	return s
}

func TestProtocols(t *testing.T) {
	for _, c := range []struct {
		mode  link.Mode
		extra []string
		want  []string
	}{
		{link.Auto, nil, []string{link.ALPN, "h2"}},
		{link.Off, []string{"x"}, []string{"h2", "x"}},
		{link.Require, nil, []string{link.ALPN}},
		{"", []string{"h2", "x"}, []string{link.ALPN, "h2", "x"}},
	} {
		testutil.EqualSlices(t, protocols(c.mode, c.extra), c.want, "%q", c.mode)
	}
}

// A server of before may have an address with a zone, which no URL holds as it is.
func TestServerOfBeforeAtALinkLocalAddress(t *testing.T) {
	ca, config := newCA(t)
	server := newTestServer(t, ca, "server-1", true)
	a := testutil.Must(New(testOptions(config, server.address())))(t)
	c := newConnector(a.opts, a.forwarder, a.metrics, a.ends)
	to := testutil.Must(a.set.resolver.resolve(t.Context()))(t)[0]
	conn := testutil.Must(c.secure(t.Context(), to))(t)
	to.dial = "[fe80::1%eth0]:8091"
	s, err := c.connectLegacy(t.Context(), conn, to)
	if err != nil {
		_ = conn.Close()
		t.Fatal(err)
	}
	err = s.Close()
	testutil.Holds(t, err == nil && s.ServerID() == "server-1", "%q, %v", s.ServerID(), err)
}

// A server whose clock is wrong refuses a good certificate; one that does not answer in time has
// refused nothing.
func TestRefusalsAreTold(t *testing.T) {
	testutil.ErrorSays(t, refusal(&net.OpError{Op: "remote error", Err: tls.AlertError(45)}), "by the server's clock", "certificate_expired (RFC 8446 §6.2)")
	testutil.ErrorSays(t, refusal(context.DeadlineExceeded), "the server does not answer: ", "a late answer")
}

// An agent names the groups that it has lost.
func TestLostLinksAreNamed(t *testing.T) {
	server, opts := newServed(t, "server-1", false)
	runAgent(t, opts)
	first := server.next().peer.(*link.Session)
	testutil.Equal(t, first.Peer().Lost, "", "the groups that it has lost at first")
	first.Replaced() // with no word to the agent
	second := server.next().peer.(*link.Session).Peer()
	testutil.Equal(t, second.Lost, first.Peer().Group, "the group that it has lost")
	testutil.Holds(t, second.Group != second.Lost, "it is in use again")
}

// A link that was given up in its handshake is named, too: its server may have it.
func TestLinksGivenUpAreNamed(t *testing.T) {
	server, opts := newServed(t, "server-1", false)
	a := testutil.Must(New(opts))(t)
	c := newConnector(a.opts, a.forwarder, a.metrics, a.ends)
	to := testutil.Must(a.set.resolver.resolve(t.Context()))(t)[0]
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.connectLink(gone, testutil.Must(c.secure(t.Context(), to))(t), to)
	testutil.ErrorIs(t, err, context.Canceled, "the link that is given up")
	defer testutil.Must(c.connect(t.Context(), to))(t).Close()
	for lost := ""; len(lost) != link.GroupSize; { // of one of the two
		lost = server.next().peer.(*link.Session).Peer().Lost
	}
}

// A lane says that it is one of the link's. Without lanes nothing is said of them.
func TestLanesOfOneLink(t *testing.T) {
	server, opts := newServed(t, "server-1", false)
	opts.Lanes = 2
	testutil.Must(connectOnce(t, opts))(t)
	first := server.next().peer.(*link.Session)
	group := first.Peer().Group
	testutil.Requires(t, len(group) == link.GroupSize && first.Lanes(), "the first link's group is %q", group)
	opts.Registerer = nil
	a := testutil.Must(New(opts))(t)
	c := newConnector(a.opts, a.forwarder, a.metrics, a.ends)
	addresses := testutil.Must(a.set.resolver.resolve(t.Context()))(t)
	testutil.Opened(c.connectLane(t.Context(), addresses[0], group))(t)
	got := server.next().peer.(*link.Session).Peer()
	testutil.Holds(t, got.Group == group && got.ID == first.Peer().ID, "the lane came as %v of group %q", got, got.Group)

	opts.Lanes, opts.Registerer = 1, nil
	testutil.Must(connectOnce(t, opts))(t)
	alone := server.next().peer.(*link.Session)
	testutil.Holds(t, !alone.Lanes() && alone.Peer().Group != group, "an agent without lanes offers them")
}
