package frontend

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// counter is a Metrics and a ConnectMetrics.
type counter struct {
	mu       sync.Mutex
	rejected map[string]int
	conns    atomic.Int64
	http     atomic.Int64
	writes   atomic.Int64
}

func (c *counter) Connection(_ string, delta int) { c.conns.Add(int64(delta)) }

func (c *counter) HTTPConnection(delta int) { c.http.Add(int64(delta)) }

func (c *counter) FrontendWrite(time.Duration) { c.writes.Add(1) }

func (c *counter) Rejected(_, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rejected == nil {
		c.rejected = make(map[string]int)
	}
	c.rejected[reason]++
}

func (c *counter) count(reason string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rejected[reason]
}

// rig is a running frontend.
type rig struct {
	*Frontend
	*counter
	t      *testing.T
	addr   net.Addr
	cancel context.CancelFunc
	served chan error
	ca     *pki.CA
}

type setting func(*Config)

func start(t *testing.T, network string, secure bool, settings ...setting) *rig {
	t.Helper()
	r := &rig{t: t, counter: &counter{}, served: make(chan error, 1)}
	cfg := Config{Name: "clients", PreAuth: NewPreAuth(admission.Descriptors()), Metrics: r.counter, Log: logging.Silent(), LinkALPN: "test-link/1"}
	if secure {
		r.ca, _ = pki.NewCA("ca")
		pair := testutil.Must(r.ca.Issue(pki.Leaf{CommonName: "s", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
		cfg.TLS = func(protos ...string) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, NextProtos: protos, ClientCAs: r.ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
		}
	}
	for _, s := range settings {
		s(&cfg)
	}
	f := testutil.Must(New(cfg))(t)
	r.Frontend = f
	where := "127.0.0.1:0"
	if network == "unix" {
		where = filepath.Join(t.TempDir(), "s")
	}
	l := testutil.Must(net.Listen(network, where))(t)
	r.addr = l.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.served <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		testutil.Succeeds(t, testutil.Receive(t, "Serve returns", r.served), "Serve")
		testutil.Equal(t, r.conns.Load(), 0, "connections are counted as open at the end")
		testutil.Equal(t, r.http.Load(), 0, "CONNECT requests are counted as open at the end")
	})
	return r
}

func (r *rig) raw() net.Conn {
	r.t.Helper()
	c := testutil.Must(net.Dial(r.addr.Network(), r.addr.String()))(r.t)
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute)) // for all that a test does with it, on a busy machine
	r.t.Cleanup(func() { c.Close() })
	return c
}

// secure is a client's TLS, with a certificate.
func (r *rig) secure(protos ...string) *tls.Config {
	r.t.Helper()
	pair := testutil.Must(r.ca.Issue(pki.Leaf{CommonName: "c", Client: true}))(r.t)
	return &tls.Config{RootCAs: r.ca.Pool(), ServerName: "localhost", NextProtos: protos, Certificates: []tls.Certificate{pair.TLS()}}
}

// dial connects, with TLS where the rig has it.
func (r *rig) dial(protos ...string) net.Conn {
	r.t.Helper()
	c := r.raw()
	if r.ca == nil {
		return c
	}
	s := tls.Client(c, r.secure(protos...))
	testutil.NoError(r.t, s.Handshake())
	return s
}

// asked is a client that has sent something.
func (r *rig) asked(what string) net.Conn {
	r.t.Helper()
	c := r.dial()
	send(r.t, c, what)
	return c
}

// connected is a client whose CONNECT was answered.
func (r *rig) connected(protos ...string) net.Conn {
	r.t.Helper()
	c := r.dial(protos...)
	send(r.t, c, request)
	expect(r.t, c, established)
	return c
}

// connecting serves CONNECT by dial.
func connecting(dial tunnel.DialerFunc) setting {
	return func(c *Config) {
		admit := func(token string) (tunnel.Handler, error) {
			if token == "bad" {
				return nil, errors.New("a stranger\r\nis there")
			}
			return &tunnel.Forwarder{Dialer: dial}, nil
		}
		c.Connect = Connect(admit, c.Metrics.(*counter), func() error { return errors.New("no agent\r\nis there") })
	}
}

// echo is a destination that sends back what it gets, after greeting.
func echo(greeting string) tunnel.DialerFunc {
	return func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far, err := pair()
		if err != nil {
			return nil, err
		}
		go func() {
			defer far.Close()
			_, _ = io.WriteString(far, greeting)
			_, _ = io.Copy(far, far)
			_ = far.CloseWrite()
		}()
		return near, nil
	}
}

// pair is a connected pair over loopback, with half-close.
func pair() (a, b tunnel.Conn, err error) {
	x, y, err := testutil.Connected()
	if err != nil {
		return nil, nil, err
	}
	return tunnel.Wrap(x), tunnel.Wrap(y), nil
}

func failing(f tunnel.Failure, reason string) tunnel.DialerFunc {
	return func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return nil, &tunnel.DialError{Failure: f, Reason: reason}
	}
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	testutil.Must(io.WriteString(c, s))(t)
}

func expect(t *testing.T, c io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	n, err := io.ReadFull(c, b)
	testutil.Requires(t, err == nil && string(b) == want, "read %q, %v, want %q", b[:n], err, want)
}

// closed fails unless the peer has closed or reset c.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	timeout, ok := errors.AsType[net.Error](err)
	testutil.Requires(t, !ok || !timeout.Timeout(), "the connection is still open")
}

// everywhere runs a test over each kind of listener.
func everywhere(t *testing.T, f func(t *testing.T, start func(...setting) *rig)) {
	for _, kind := range []struct {
		name, network string
		secure        bool
	}{{"tls", "tcp", true}, {"tcp", "tcp", false}, {"unix", "unix", false}} {
		t.Run(kind.name, func(t *testing.T) {
			f(t, func(s ...setting) *rig { return start(t, kind.network, kind.secure, s...) })
		})
	}
}

const request = "CONNECT a.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

func TestConnect(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")))
		c := r.connected()
		// Nothing may follow before there is data.
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := c.Read(make([]byte, 1))
		testutil.Requires(t, n == 0 && err != nil, "something followed the answer")
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		send(t, c, "hello")
		expect(t, c, "hello")
		testutil.Holds(t, r.http.Load() == 1 && r.writes.Load() != 0,
			"http_connections %d, writes seen %d", r.http.Load(), r.writes.Load())
		_ = tunnel.Wrap(c).CloseWrite()
		testutil.Equal(t, len(testutil.Must(io.ReadAll(c))(t)), 0, "after half-close")
	})
}

func TestPipelinedBytesAreKept(t *testing.T) {
	payload := strings.Repeat("0123456789abcdef", 20<<10/16) // more than is read ahead
	longest := strings.TrimSuffix(request, "\r\n") + "A: "
	longest += strings.Repeat("x", maxHeader-len(longest)-4) + "\r\n\r\n"
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			time.Sleep(50 * time.Millisecond) // so that all of it is there first
			return echo("")(ctx, f)
		}))
		for _, request := range []string{request, longest} {
			expect(t, r.asked(request+payload), "HTTP/1.1 200 Connection Established\r\n\r\n"+payload)
		}
	})
}

func TestRequestThenHalfCloseDuringTheDial(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return echo("greeting")(ctx, f)
		}))
		c := r.asked(request + "ping")
		_ = tunnel.Wrap(c).CloseWrite()
		got, _ := io.ReadAll(c)
		testutil.Equal(t, string(got), established+"greetingping", "the client gets")
	})
}

func TestClientThatLeavesCancelsTheDial(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		dialing, cancelled := make(chan struct{}), make(chan error, 1)
		r := start(connecting(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
			close(dialing)
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return nil, ctx.Err()
		}))
		c := r.asked(request)
		<-dialing
		c.Close()
		testutil.ErrorIs(t, testutil.Receive(t, "the dial ends", cancelled), context.Canceled, "the dial ends")
	})
}

// TestLateSuccessIsReset: a dial that succeeds for a client that left is not
// leaked.
func TestLateSuccessIsReset(t *testing.T) {
	dialing, leave := make(chan struct{}), make(chan struct{})
	var far tunnel.Conn
	r := start(t, "tcp", false, connecting(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
		close(dialing)
		<-leave
		<-ctx.Done()
		near, f, err := pair()
		far = f
		return near, err // although ctx has ended
	}))
	c := r.asked(request)
	<-dialing
	c.Close()
	close(leave)
	testutil.Eventually(t, "the request ends", func() bool { return r.conns.Load() == 0 })
	_ = far.SetReadDeadline(time.Now().Add(5 * time.Second))
	testutil.ErrorIs(t, testutil.Err(far.Read(make([]byte, 1))), syscall.ECONNRESET, "the far end reads")
	far.Close()
}

func TestAnswersOfFailedDials(t *testing.T) {
	for _, tc := range []struct {
		failure tunnel.Failure
		reason  string
		status  int
		says    string
	}{
		{tunnel.FailRefused, "dial tcp 10.0.0.1:80: connect: connection refused", 502, "connection refused"},
		{tunnel.FailNoSuchHost, "", 502, "no such host"},
		{tunnel.FailNoSuchHost, "lookup of x failed", 502, "no such host: lookup of x failed"},
		{tunnel.FailTimeout, "", 504, "timeout"},
		{tunnel.FailNoAgent, "no agent is connected", 503, "no agent available: no agent is connected"},
		{tunnel.FailAgentLost, "", 503, "agent went away"},
		{tunnel.FailExhausted, "", 503, "too many open files"},
		{tunnel.FailExhausted, "the dial could not be made", 503, "too many open files: the dial could not be made"},
		{tunnel.FailExhausted, "this client's share is used up: it has 7", 503, "this client's share is used up: it has 7"},
		{tunnel.FailDenied, "", 403, "not allowed"},
		{tunnel.FailInternal, "two\r\nlines\x00", 502, "two  lines "},
	} {
		r := start(t, "tcp", false, connecting(failing(tc.failure, tc.reason)))
		resp := testutil.Must(http.ReadResponse(bufio.NewReader(r.asked(request)), &http.Request{Method: http.MethodConnect}))(t)
		resp2, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != tc.status || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" || !strings.Contains(string(resp2), tc.says) || tc.failure == tunnel.FailExhausted && !strings.HasPrefix(string(resp2), tc.says) {
			t.Errorf("%v: %s, %q", tc.failure, resp.Status, resp2)
		}
		testutil.Equal(t, resp.Status+"\n", fmt.Sprint(tc.status, " ", string(resp2)), "the status line, which is all that kube-apiserver logs")
	}
}

func TestBadRequestsAreAnswered(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")))
		for request, status := range map[string]int{
			"CONNECT a.example HTTP/1.1\r\n\r\n":                                     400,
			"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                                      405,
			"POST http://a/ HTTP/1.1\r\nContent-Length: 100000\r\n\r\nbody":          405,
			"CONNECT a:1 HTTP/1.1\r\nA: " + strings.Repeat("x", 70<<10) + "\r\n\r\n": 400,
			"CONNECT a:1 HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 20<<10) + "\r\n": 400,
			"\x00\x01\x02\x03 garbage\n":                                             400,
		} {
			c := r.dial()
			go io.WriteString(c, request) // the answer may come before all is sent
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			testutil.Holds(t, err == nil && resp.StatusCode == status, "%.40q: %v, %v, want %d", request, resp, err, status)
			testutil.Holds(t, status != 405 || err != nil || resp.Header.Get(ServingHeader) == "no; no agent  is there",
				"%q of agents", resp.Header.Get(ServingHeader))
			testutil.Holds(t, status != 405 || err != nil || resp.Header.Get("Allow") == "CONNECT",
				"%.40q: no Allow", request)
			c.Close()
		}
		testutil.AtLeast(t, r.count("protocol"), 6, "counted as rejected")
	})
}

// Only a valid request can be a stranger's.
func TestStrangers(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(func(c *Config) {
			admit := func(string) (tunnel.Handler, error) { return nil, errors.New("a stranger") }
			c.Connect = Connect(admit, c.Metrics.(*counter), nil)
		})
		expect(t, r.asked(request), "HTTP/1.1 407 ")
		expect(t, r.asked("nonsense\r\n"), "HTTP/1.1 400 ")
		r.asked("CONN").Close()
		testutil.Eventually(t, "all are counted", func() bool {
			return r.count("refused") == 1 && r.count("protocol") == 1 && r.count("closed") == 1
		})
	})
}

// A client that leaves before it has asked for anything, as probes do, has not asked for what
// is not served.
func TestClientThatLeavesBeforeItAsks(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r, want := start(connecting(echo(""))), 0
		for _, sent := range []string{"", "CONN", "CONNECT a:1 HTTP/1.1\r\nHost:"} {
			c := r.dial("http/1.1")
			send(t, c, sent)
			c.Close()
			want++
			if tcp, ok := r.dial("http/1.1").(*net.TCPConn); ok { // by TLS, it might cut the handshake
				send(t, tcp, sent)
				_ = tcp.SetLinger(0) // its end is a reset
				tcp.Close()
				want++
			}
		}
		testutil.Eventually(t, "all are counted", func() bool { return r.count("closed")+r.count("protocol") == want })
		testutil.Equal(t, r.count("protocol"), 0, "counted as if they had asked for something")
	})
}

// TestAnswerIsReadWhole: a client that sent more than was read gets its answer
// and an orderly end, not a reset.
func TestAnswerIsReadWhole(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")))
		c := r.asked("POST / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 60<<10))
		time.Sleep(100 * time.Millisecond) // whatever the server sends is there
		got, err := io.ReadAll(c)
		testutil.Holds(t, err == nil && strings.HasPrefix(string(got), "HTTP/1.1 405 ") &&
			strings.HasSuffix(string(got), "served here\n"), "%q, %v", got, err)
	})
}

// quickBound is a handshake's in tests that wait for it to pass; those that
// shake hands have that long, also on a busy machine.
const quickBound = 5 * time.Second

func quick(c *Config) { c.handshakeTimeout = quickBound }

// connectedInTime is connected within quickBound, and tries again where a busy machine is slower.
func (r *rig) connectedInTime() net.Conn {
	r.t.Helper()
	for {
		began, c := time.Now(), r.raw()
		if r.ca != nil {
			c = tls.Client(c, r.secure())
		}
		_, _ = io.WriteString(c, request)
		answer := make([]byte, len(established))
		_, err := io.ReadFull(c, answer)
		if string(answer) == established {
			return c
		}
		testutil.Requires(r.t, time.Since(began) >= quickBound, "read %q, %v, want %q", answer, err, established)
	}
}

func TestSilentAndSlowClientsAreClosed(t *testing.T) {
	t.Parallel() // it waits
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		t.Parallel()
		r := start(connecting(echo("")), quick)
		var silent []net.Conn
		for i := range 60 {
			c := r.raw()
			switch i % 4 {
			case 1:
				send(t, c, "\x16\x03\x01\x02\x00\x01") // half a ClientHello
			case 2:
				send(t, c, "CONN")
			case 3:
				send(t, c, "CONNECT a:1 HTTP/1.1\r\nA: b\r\n")
			}
			silent = append(silent, c)
		}
		if r.ca != nil { // through TLS, then nothing
			for _, protos := range [][]string{nil, {"http/1.1"}} {
				c := tls.Client(r.raw(), r.secure(protos...))
				_ = c.Handshake() // which may be too late
				silent = append(silent, c)
			}
		}
		c := r.connectedInTime()
		for _, c := range silent {
			closed(t, c)
		}
		testutil.AtLeast(t, r.count("timeout")+r.count("tls")+r.count("protocol"), 60,
			"of %d silent connections counted: %v", len(silent), r.rejected)
		time.Sleep(quickBound / 4) // it is older than its handshake may take by now
		send(t, c, "still here")
		expect(t, c, "still here")
	})
}

// named answers with the protocol's name, and then with what it reads.
func named(name string) Handler {
	return func(ctx context.Context, c *Conn) {
		if !c.Begin() {
			return
		}
		whole := c.Whole()
		defer context.AfterFunc(ctx, func() { whole.Close() })()
		_, _ = io.WriteString(whole, name+" ")
		_, _ = io.Copy(whole, whole)
	}
}

func TestProtocolsAreRecognised(t *testing.T) {
	all := func(c *Config) { c.Link, c.GRPC, c.Connect = named("link"), named("grpc"), named("connect") }
	secure := start(t, "tcp", true, all)
	for _, tc := range []struct {
		protos []string
		first  string
		want   string
	}{
		{[]string{"test-link/1"}, "", "link "},
		{[]string{"h2", "test-link/1"}, "", "link "},
		{[]string{"h2"}, "", "grpc "},
		{[]string{"custom", "h2"}, "", "grpc "},
		{[]string{"http/1.1"}, "", "connect "},
		{[]string{"h2", "http/1.1"}, "", "connect "}, // an HTTP client
		{nil, "PRI * HTTP/2.0\r\n", "grpc PRI * HTTP/2.0\r\n"},
		{nil, "CONNECT", "connect CONNECT"},
		{nil, "PRICE", "connect PRICE"},
	} {
		c := secure.dial(tc.protos...)
		send(t, c, tc.first)
		expect(t, c, tc.want)
		c.Close()
	}
	plain := start(t, "unix", false, all)
	for first, want := range map[string]string{"PRI * ": "grpc PRI * ", "CONNECT x": "connect CONNECT x", "Q": "connect Q"} {
		c := plain.dial()
		for i := range first { // however it is cut into packets
			send(t, c, first[i:i+1])
		}
		expect(t, c, want)
		c.Close()
	}
}

func TestOnlyWhatIsServedIsOffered(t *testing.T) {
	grpcOnly := start(t, "tcp", true, func(c *Config) { c.GRPC = named("grpc") })
	closed(t, grpcOnly.asked(request)) // no ALPN
	c := grpcOnly.dial("h2")
	expect(t, c, "grpc ")
	c.Close()

	// crypto/tls lets a client that wants http/1.1 pass without ALPN where h2
	// is offered; it is then told by its first bytes.
	c = grpcOnly.dial("http/1.1")
	send(t, c, request)
	closed(t, c)
	testutil.Equal(t, grpcOnly.count("protocol"), 2, "counted: %v", grpcOnly.rejected)

	c = grpcOnly.asked("PRI * ")
	expect(t, c, "grpc PRI * ")
	c.Close()

	linkOnly := start(t, "tcp", true, func(c *Config) { c.Link = named("link") })
	closed(t, linkOnly.dial())
	connectOnly := start(t, "tcp", true, func(c *Config) { c.Connect = named("connect") })
	expect(t, connectOnly.asked("PRI * "), "connect PRI * ")
	for r, want := range map[*rig]string{grpcOnly: "h2", linkOnly: "test-link/1", connectOnly: "http/1.1"} {
		testutil.EqualSlices(t, r.protocols(), []string{want}, "offered")
	}

	testutil.Fails(t, testutil.Err(New(Config{})), "a listener for nothing was made")
}

func TestClientWithoutACertificateIsRefused(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	r := start(t, "tcp", true, connecting(echo("")), func(c *Config) { c.Log = log })
	for range 5 {
		s := tls.Client(r.raw(), &tls.Config{RootCAs: r.ca.Pool(), ServerName: "localhost"})
		_ = s.Handshake()
		_, _ = io.WriteString(s, request)
		b, err := io.ReadAll(s)
		testutil.Requires(t, err != nil && len(b) == 0, "got %q, %v", b, err)
	}
	testutil.Eventually(t, "counted", func() bool { return r.count("tls") == 5 })
	testutil.Eventually(t, "logged", func() bool { return len(hook.AllEntries()) == 5 })
	for _, e := range hook.AllEntries() { // the log bounds how many of one wording it shows
		testutil.Holds(t, e.Level == logrus.WarnLevel && e.Message == "a TLS handshake of clients failed",
			"a peer that has not begun caused %v %q", e.Level, e.Message)
	}
}

func TestHTTPAtAPortWithTLSIsAnswered(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	r := start(t, "tcp", true, connecting(echo("")), func(c *Config) { c.Log = log })
	for _, asked := range []string{request, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 30<<10)} {
		c := r.raw()
		send(t, c, asked)
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 Client sent an HTTP request to an HTTPS server.\r\n") || !strings.HasSuffix(string(got), "\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") {
			t.Errorf("to %.7q: %q, %v", asked, got, err)
		}
	}
	c := r.raw()
	send(t, c, "something else\r\n\r\n")
	got, err := io.ReadAll(c)
	testutil.Holds(t, len(got) == 0, "what is no HTTP is answered %q, %v", got, err)
	c = r.raw()
	var hello [64 << 10]byte
	near, far := net.Pipe()
	client := tls.Client(near, r.secure())
	go func() { _ = client.Handshake() }()
	n := testutil.Must(far.Read(hello[:]))(t)
	_ = far.Close()
	send(t, c, string(hello[:n])+request)
	got, err = io.ReadAll(c)
	testutil.Holds(t, !bytes.Contains(got, []byte("HTTP/")), "HTTP in the middle of TLS is answered %q, %v", got, err)
	testutil.Eventually(t, "counted", func() bool { return r.count("protocol") == 3 && r.count("tls") == 2 })
	for _, e := range hook.AllEntries() {
		want := map[bool]logrus.Level{true: logrus.DebugLevel, false: logrus.WarnLevel}[strings.HasSuffix(e.Message, "came to nothing")]
		testutil.Holds(t, e.Level == want, "%v %q", e.Level, e.Message)
	}
}

func TestConnectionLimit(t *testing.T) {
	r := start(t, "tcp", false, connecting(echo("")), func(c *Config) { c.MaxConns = 2 })
	a := r.connected()
	r.connected()
	closed(t, r.asked(request))
	testutil.Equal(t, r.count("limit"), 1, "counted for the limit")
	a.Close()
	testutil.Eventually(t, "a slot is free", func() bool { return r.conns.Load() == 1 })
	r.connected()
}

func TestDrain(t *testing.T) {
	t.Parallel() // it waits
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		t.Parallel()
		r := start(connecting(echo("")), func(c *Config) { c.handshakeTimeout = time.Hour })
		c := r.connected()
		waiting := r.asked("CONNECT ")
		late := r.asked(request[:8])
		testutil.Eventually(t, "all are there", func() bool { return r.conns.Load() == 3 })
		began := time.Now()
		r.Drain()
		r.Drain()
		time.Sleep(2 * drainAccept)
		_, _ = io.WriteString(late, request[8:]) // a client that asks in time is still served
		answer := make([]byte, len(established))
		_, err := io.ReadFull(late, answer)
		if string(answer) != established && time.Since(began) < drainHandshake { // else it was late indeed
			t.Errorf("read %q, %v, want %q", answer, err, established)
		}
		late.Close()
		closed(t, waiting) // not by the handshake's bound
		testutil.Eventually(t, "no more is accepted", func() bool {
			c, err := net.Dial(r.addr.Network(), r.addr.String())
			if err == nil {
				c.Close()
			}
			return err != nil
		})
		send(t, c, "goes on")
		expect(t, c, "goes on")
		select {
		case err := <-r.served:
			t.Fatalf("Serve returned (%v) while a connection was open", err)
		default:
		}
		c.Close()
		r.served <- testutil.Receive(t, "Serve returns after the last connection", r.served)
	})
}

// Frontends that share a PreAuth are drained apart.
func TestDrainIsOfOneFrontend(t *testing.T) {
	first := start(t, "tcp", false, connecting(echo("")))
	second := start(t, "tcp", false, connecting(echo("")), func(c *Config) {
		c.PreAuth, c.handshakeTimeout = first.cfg.PreAuth, time.Hour
	})
	c := second.asked("CONNECT ")
	testutil.Eventually(t, "it waits", func() bool { return second.waiting() == 1 })
	first.Drain()
	first.Settle(t.Context())
	testutil.Fails(t, testutil.Err(net.Dial("tcp", first.addr.String())), "the drained one accepts")
	testutil.Equal(t, second.waiting(), 1, "connections of the other that wait")
	c.Close()
}

func TestContextCutsConnections(t *testing.T) {
	everywhere(t, func(t *testing.T, start func(...setting) *rig) {
		r := start(connecting(echo("")))
		c := r.connected()
		silent := r.raw()
		r.cancel()
		closed(t, c)
		closed(t, silent)
	})
}

// scripted is a listener that fails as told before it works.
type scripted struct {
	net.Listener
	errs chan error
}

func (s *scripted) Accept() (net.Conn, error) {
	select {
	case err := <-s.errs:
		return nil, &net.OpError{Op: "accept", Err: err}
	default:
		return s.Listener.Accept()
	}
}

func TestAcceptErrors(t *testing.T) {
	f := testutil.Must(New(Config{Name: "clients", Connect: named("connect"), PreAuth: NewPreAuth(0), Metrics: &counter{}, Log: logging.Silent()}))(t)
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &scripted{l, make(chan error, 10)}
	for range 3 {
		s.errs <- syscall.EMFILE
	}
	s.errs <- syscall.ECONNABORTED
	served := testutil.Later(func() error { return f.Serve(t.Context(), s) })
	c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	send(t, c, "Q")
	expect(t, c, "connect Q")
	defer c.Close()
	_ = l.Close() // breaks under it, and is told though a connection is open
	testutil.ErrorSays(t, <-served, "the listener for clients on 127.0.0.1", "Serve")
}

// TestManyAtOnce checks every byte of many concurrent requests.
func TestManyAtOnce(t *testing.T) {
	r := start(t, "tcp", true, connecting(echo("")))
	var wg sync.WaitGroup
	for i := range 64 {
		c := r.dial()
		wg.Go(func() {
			payload := bytes.Repeat([]byte(fmt.Sprintf("%04d", i)), 50<<10)
			go func() {
				_, _ = c.Write(append([]byte(request), payload...))
				_ = tunnel.Wrap(c).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			want := append([]byte(established), payload...)
			testutil.Holds(t, err == nil && bytes.Equal(got, want), "%d: %d bytes of %d, %v", i, len(got), len(want), err)
		})
	}
	wg.Wait()
}

// Who takes the whole connection has no use for a buffer beside it.
func TestWholeLeavesNoBuffer(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	c := &Conn{Conn: tunnel.Wrap(near)}
	c.buffer()
	if c.Whole(); c.Reader != nil {
		t.Error("the buffer is kept for as long as the connection lasts")
	}
}

// What a handler leaves to Go is served after it has returned, with all that a
// connection has, and what it leaves to AtEnd is done last, in the opposite order.
func TestGoServesAfterTheHandler(t *testing.T) {
	var said []string
	returned, served := make(chan struct{}), make(chan struct{})
	r := start(t, "tcp", true, func(c *Config) {
		c.Link = func(ctx context.Context, c *Conn) {
			defer close(returned)
			c.AtEnd(func() { said = append(said, "first"); close(served) })
			c.AtEnd(func() { said = append(said, "second") })
			testutil.Holds(t, c.Begin(), "no room")
			c.Go(func() {
				<-returned
				_, err := c.Conn.Read(make([]byte, 1))
				said = append(said, fmt.Sprint(err, " ", ctx.Err()))
			})
		}
	})
	c := r.dial("test-link/1")
	<-returned
	testutil.Equal(t, r.conns.Load(), 1, "connections are open")
	_ = c.Close()
	<-served
	testutil.Equal(t, fmt.Sprint(said), "[EOF <nil> second first]", "in this order it is said")
}

// What Go serves begins with the stack that any goroutine begins with, whatever the
// handshake needed.
func TestAHandshakeLeavesNoStack(t *testing.T) {
	const conns, most = 200, 6 << 10 // stacks come in spans of 32 KiB
	r := start(t, "tcp", true, func(c *Config) {
		c.Link = func(_ context.Context, c *Conn) {
			c.Begin()
			c.Go(func() { _, _ = c.Conn.Read(make([]byte, 1)) })
		}
	})
	before := stacks()
	for range conns {
		r.dial("test-link/1")
	}
	testutil.Eventually(t, "6 KiB of stack for each connection", func() bool {
		return float64(stacks())-float64(before) <= conns*most || !testutil.ExactMemory
	})
}

// stacks is the memory of all, once those have shrunk that can.
func stacks() uint64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackInuse
}

// Ports that share room have it together, and what one gives up the other may take.
func TestRoomIsShared(t *testing.T) {
	shared := func(c *Config) { c.Room = make(Room, 1) }
	first := start(t, "tcp", false, connecting(echo("")), shared)
	second := start(t, "tcp", false, connecting(echo("")), func(c *Config) { c.Room = first.Room() })
	a := first.connected()
	closed(t, second.asked(request))
	a.Close()
	testutil.Eventually(t, "there is room", func() bool { return first.conns.Load() == 0 })
	second.connected()
}

// Without TLS, a Frontend can be told whose its connections are, or to refuse them.
func TestOwnerOfAPlainConnection(t *testing.T) {
	for _, refusal := range []error{nil, errors.New("nobody's")} {
		got := make(chan any, 1)
		r := start(t, "unix", false, func(c *Config) {
			c.Connect = func(_ context.Context, c *Conn) { got <- c.Owner(); c.Begin() }
			c.Owner = func() (any, error) { return "red", refusal }
		})
		c := r.dial()
		_, _ = io.WriteString(c, request)
		closed(t, c)
		select {
		case whose := <-got:
			testutil.Holds(t, refusal == nil && whose == "red", "it is served as %v's, with %v", whose, refusal)
		default:
			testutil.Holds(t, refusal != nil, "it is not served")
		}
	}
}

// A connection is rejected for one reason, the first, and not once it has begun.
func TestAConnectionIsRejectedOnce(t *testing.T) {
	begins := func(c *Conn) bool { return c.Begin() }
	for name, tc := range map[string]struct {
		handle  func(*Conn)
		reason  string // "": none
		logged  logrus.Level
		message string
	}{
		"left alone":           {func(*Conn) {}, "timeout", logrus.DebugLevel, "a connection of clients came to nothing"},
		"denied":               {(*Conn).Deny, "refused", logrus.DebugLevel, "a connection of clients came to nothing"},
		"without room":         {func(c *Conn) { c.NoRoom("why") }, "limit", logrus.WarnLevel, "a connection of clients was refused: why"},
		"refused":              {func(c *Conn) { c.Refuse("why") }, "refused", logrus.WarnLevel, "a connection of clients was refused: why"},
		"denied, without room": {func(c *Conn) { c.Deny(); c.NoRoom("why") }, "refused", logrus.DebugLevel, "a connection of clients came to nothing"},
		"without room, denied": {func(c *Conn) { c.NoRoom("why"); c.Deny() }, "limit", logrus.WarnLevel, "a connection of clients was refused: why"},
		"denied, begun": {func(c *Conn) { c.Deny(); testutil.Holds(t, !begins(c), "it begins") },
			"refused", logrus.DebugLevel, "a connection of clients came to nothing"},
		"begun":                       {func(c *Conn) { begins(c) }, "", 0, ""},
		"begun, denied, without room": {func(c *Conn) { begins(c); c.Deny(); c.NoRoom("why") }, "", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := logtest.NewNullLogger()
			log.SetLevel(logrus.DebugLevel)
			r := start(t, "tcp", false, func(c *Config) {
				c.Log = log
				c.Connect = func(_ context.Context, c *Conn) { tc.handle(c) }
			})
			closed(t, r.asked(request))
			testutil.Eventually(t, "it is over", func() bool { return r.conns.Load() == 0 })
			want := map[string]int{}
			if tc.reason != "" {
				want[tc.reason] = 1
			}
			testutil.Holds(t, maps.Equal(r.rejected, want), "counted as %v, want %v", r.rejected, want)
			all := lines.AllEntries()
			testutil.Requires(t, len(all) == len(want), "%d lines", len(all))
			for _, line := range all {
				testutil.Holds(t, line.Level == tc.logged && line.Message == tc.message && line.Data["remote"] != nil,
					"%v %q, %v", line.Level, line.Message, line.Data)
			}
		})
	}
}

// Why a connection came to nothing follows from its error, and from how far it had got.
func TestReasons(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	late := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	header := func(err error) error { return fmt.Errorf("%w: %w", errProxyHeader, err) }
	other := errors.New("nonsense")
	for _, tc := range []struct {
		err            error
		plain, shaking string // without TLS, and in a handshake
		drained        string // in a drain; "": closed
	}{
		{io.EOF, "closed", "closed", ""},
		{net.ErrClosed, "closed", "closed", ""},
		{reset, "closed", "tls", ""},
		{late, "timeout", "timeout", ""},
		{errUnproven, "timeout", "timeout", ""},
		{other, "protocol", "tls", ""},
		{errDenied, "refused", "refused", "refused"},
		{errProxyHeader, "proxy", "proxy", ""},
		{header(reset), "closed", "closed", ""},
		{header(late), "timeout", "timeout", ""},
		{header(io.EOF), "closed", "closed", ""},
	} {
		for _, secure := range []bool{false, true} {
			for _, drained := range []bool{false, true} {
				f := &Frontend{drained: make(chan struct{})}
				want := tc.plain
				if secure {
					f.tls, want = &tls.Config{}, tc.shaking
				}
				if drained {
					close(f.drained)
					want = cmp.Or(tc.drained, "closed")
				}
				testutil.Equal(t, (&Conn{front: f}).reason(tc.err), want, "%v, with TLS %v, in a drain %v", tc.err, secure, drained)
			}
		}
	}
}
