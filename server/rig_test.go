package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// rig is a whole server on loopback, with its own PKI.
type rig struct {
	*Server
	t       *testing.T
	ca      *pki.CA
	uds     string
	tcp     string // clients over mTLS
	agentAt string
	health  string
	admin   string
	stop    context.CancelFunc
	result  chan error
}

func startServer(t *testing.T, settings ...func(*Options)) *rig {
	t.Helper()
	ca, err := pki.NewCA("ca")
	testutil.NoError(t, err)
	r := &rig{t: t, ca: ca, result: make(chan error, 1)}
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"localhost"}, Server: true}))(t)
	secure := func(_ tlsreload.Choose, protos ...string) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protos}
	}
	r.uds = filepath.Join(t.TempDir(), "s")
	unix := testutil.Must(unixsocket.Listen(r.uds, unixsocket.Options{}))(t)
	tcp, agents, health, admin := testutil.Listen(t), testutil.Listen(t), testutil.Listen(t), testutil.Listen(t)
	r.tcp, r.agentAt, r.health, r.admin = tcp.Addr().String(), agents.Addr().String(), health.Addr().String(), admin.Addr().String()
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetLevel(logrus.DebugLevel) // so that what debug lines do is run
	opts := Options{
		ID: "server-1", Count: 3,
		Clients: []Listener{{Listener: tcp, TLS: secure}, {Listener: unix}},
		Agents:  []Listener{{Listener: agents, TLS: secure}},
		Health:  health, Admin: admin,
		Grace: 5 * time.Second, Log: log, Registry: prometheus.NewPedanticRegistry(),
	}
	for _, s := range settings {
		s(&opts)
	}
	r.Server, err = New(opts)
	testutil.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.result <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testutil.Succeeds(t, r.wait(30*time.Second), "the server ends")
	})
	return r
}

// wait returns what Run returned; it may be called again.
func (r *rig) wait(d time.Duration) error {
	select {
	case err := <-r.result:
		r.result <- err
		return err
	case <-time.After(d):
		return errors.New("the server is still running")
	}
}

// ended waits until the server has ended, as it should.
func (r *rig) ended() {
	r.t.Helper()
	testutil.NoError(r.t, r.wait(20*time.Second))
}

// stopped stops the server, and waits for its end.
func (r *rig) stopped() {
	r.t.Helper()
	r.stop()
	r.ended()
}

// givesBack stops the server, which uses nothing then.
func (r *rig) givesBack(used func() int64) {
	r.t.Helper()
	r.stopped()
	testutil.Equal(r.t, used(), 0, "bytes are not given back")
}

func (r *rig) tls(protos ...string) *tls.Config { return r.tlsOf("peer", protos...) }

func (r *rig) tlsOf(name string, protos ...string) *tls.Config {
	r.t.Helper()
	pair := testutil.Must(r.ca.Issue(pki.Leaf{CommonName: name, Client: true, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}))(r.t)
	return &tls.Config{RootCAs: r.ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{pair.TLS()}, NextProtos: protos}
}

// A network is an agent's data plane in memory, by destination.
type network func(ctx context.Context, address string) (tunnel.Conn, error)

// echoing sends back what it gets; "refused:1" and the like fail.
func echoing(ctx context.Context, address string) (tunnel.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	switch host {
	case "refused":
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
	case "unknown":
		return nil, &tunnel.DialError{Failure: tunnel.FailNoSuchHost}
	case "silent":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := tcpPair()
	go func() {
		defer far.Close()
		_, _ = io.Copy(far, far)
		_ = far.CloseWrite()
	}()
	return near, nil
}

func tcpPair() (a, b tunnel.Conn) {
	x, y, err := testutil.Connected()
	if err != nil {
		panic(err)
	}
	return tunnel.Wrap(x), tunnel.Wrap(y)
}

func forwarder(n network) *tunnel.Forwarder {
	return &tunnel.Forwarder{
		Dialer:      tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) { return n(ctx, f.Address) }),
		DialTimeout: time.Hour, // the server gives up
	}
}

// agent is a connected agent of either protocol.
type agent interface {
	Close() error
	Done() <-chan struct{}
	Drains() *tunnel.Event
	ServerCount() int
}

type agentHello struct{ id, identifiers, token string }

func (r *rig) agent(kind string, h agentHello, n network) agent {
	r.t.Helper()
	before := len(r.own.agents.Agents())
	a := testutil.Must(r.tryAgent(kind, h, n))(r.t)
	r.eventually("the agent is known", func() bool { return len(r.own.agents.Agents()) > before })
	return a
}

func (r *rig) tryAgent(kind string, h agentHello, n network) (agent, error) {
	r.t.Helper()
	return r.agentAs(r.tls, kind, h, n)
}

// agentAs is an agent by either protocol.
func (r *rig) agentAs(secure func(protos ...string) *tls.Config, kind string, h agentHello, n network) (agent, error) {
	if kind == "link" {
		hello := link.Hello{Role: link.RoleAgent, ID: h.id, Identifiers: h.identifiers, Token: h.token}
		return r.linked(r.agentAt, secure(link.ALPN), link.Config{Hello: hello, Handler: forwarder(n)})
	}
	return r.agentBy(secure(), h, n)
}

// linked makes a link to one port of the server.
func (r *rig) linked(at string, secure *tls.Config, cfg link.Config) (*link.Session, error) {
	ctx := testutil.Context(r.t)
	conn, err := (&tls.Dialer{Config: secure}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	ses, err := link.Connect(ctx, conn, cfg)
	if err == nil {
		r.t.Cleanup(func() { ses.Close() })
	}
	return ses, err
}

// agentBy is an agent by gRPC.
func (r *rig) agentBy(secure *tls.Config, h agentHello, n network) (agent, error) {
	conn, err := grpc.NewClient(r.agentAt, grpc.WithTransportCredentials(credentials.NewTLS(secure)))
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { conn.Close() })
	cfg := legacy.AgentConfig{ID: h.id, Identifiers: h.identifiers, Forwarder: forwarder(n)}
	if h.token != "" {
		cfg.Token = func() (string, error) { return h.token, nil }
	}
	ses, err := legacy.ConnectAgent(testutil.Context(r.t), conn, cfg)
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { ses.Close() })
	return ses, nil
}

var (
	agentKinds  = []string{"grpc", "link"}
	clientKinds = []string{"connect-tls", "connect-uds", "grpc-tls", "grpc-uds", "link"}
)

// statusError is how a CONNECT dial fails.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprint(e.code, " ", e.body) }

// dial reaches a destination as one kind of client does.
func (r *rig) dial(kind, address string) (net.Conn, error) {
	r.t.Helper()
	switch kind {
	case "connect-tls":
		c, err := tls.Dial("tcp", r.tcp, r.tls())
		if err != nil {
			return nil, err
		}
		return r.connect(c, address)
	case "connect-uds":
		c, err := net.Dial("unix", r.uds)
		if err != nil {
			return nil, err
		}
		return r.connect(c, address)
	case "grpc-tls":
		return r.tunnel(address, r.tcp, credentials.NewTLS(r.tls()))
	case "grpc-uds":
		return r.tunnel(address, "unix://"+r.uds, insecure.NewCredentials())
	default:
		return r.byLink(r.clientLink())(address)
	}
}

func (r *rig) clientLink() (*link.Session, error) {
	return r.clientLinkAs(r.tls(link.ALPN), link.Hello{Role: link.RoleClient, ID: "sidecar"})
}

func (r *rig) clientLinkAs(config *tls.Config, hello link.Hello) (*link.Session, error) {
	return r.linked(r.tcp, config, link.Config{Hello: hello})
}

// byLink dials by a link, if it was made.
func (r *rig) byLink(ses *link.Session, err error) func(address string) (net.Conn, error) {
	return func(address string) (net.Conn, error) {
		if err != nil {
			return nil, err
		}
		return ses.Dial(testutil.Context(r.t), tunnel.NewFlow("tcp", address))
	}
}

func (r *rig) connect(c net.Conn, address string) (net.Conn, error) {
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address); err != nil {
		return nil, err
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != 200 {
		body, _ := io.ReadAll(resp.Body)
		return nil, &statusError{resp.StatusCode, string(body)}
	}
	if br.Buffered() > 0 {
		return nil, errors.New("something follows the answer")
	}
	return c, nil
}

// tunnel is kube-apiserver's way, by the real konnectivity-client.
func (r *rig) tunnel(address, server string, creds credentials.TransportCredentials) (net.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	tun, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, ctx, server, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	c, err := tun.DialContext(ctx, "tcp", address)
	if err == nil {
		r.t.Cleanup(func() {
			c.Close()
			select {
			case <-tun.Done():
			case <-time.After(time.Minute):
				r.t.Error("the client's tunnel did not end")
			}
		})
	}
	return c, err
}

func (r *rig) mustDial(kind, address string) net.Conn {
	r.t.Helper()
	c, err := r.dial(kind, address)
	testutil.Requires(r.t, err == nil, "%s to %s: %v", kind, address, err)
	return c
}

// failedAs fails t unless err is a dial's failure of that kind.
func failedAs(t testing.TB, err error, want tunnel.Failure, what string, args ...any) {
	t.Helper()
	testutil.Holds(t, tunnel.FailureOf(err) == want, "%s: got %v, want %v", fmt.Sprintf(what, args...), err, want)
}

// roundTrip fails unless every byte comes back.
func (r *rig) roundTrip(c net.Conn, size int) {
	r.t.Helper()
	payload := strings.Repeat("0123456789abcde\n", size/16+1)[:size]
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _, _ = io.WriteString(c, payload) })
	got := make([]byte, size)
	n, err := io.ReadFull(c, got)
	testutil.Holds(r.t, err == nil && string(got) == payload, "%d of %d bytes came back, %v", n, size, err)
}

// get is a page of the health or admin port.
func (r *rig) get(at, path string) (int, string) {
	r.t.Helper()
	code, _, body := fetch(r.t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}, "http://"+at+path, "")
	return code, body
}

// fetch gets a page with a token, or without one if it is "". The status is 0 and the body an error
// if there is no whole answer.
func fetch(t *testing.T, client *http.Client, url, token string) (status int, header http.Header, body string) {
	t.Helper()
	req := testutil.Must(http.NewRequest(http.MethodGet, url, nil))(t)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return resp.StatusCode, resp.Header, string(text)
}

// metric is whether the metrics page has these lines.
func (r *rig) metric(lines ...string) bool {
	r.t.Helper()
	_, page := r.get(r.health, "/metrics")
	return !slices.ContainsFunc(lines, func(line string) bool { return !hasLine(page, line) })
}

// hasMetrics fails unless the metrics page has these lines.
func (r *rig) hasMetrics(lines ...string) {
	r.t.Helper()
	_, page := r.get(r.health, "/metrics")
	for _, line := range lines {
		if !hasLine(page, line) {
			name, _, _ := strings.Cut(strings.Fields(line)[0], "{")
			r.t.Errorf("metrics lack %s, and have:\n%s", line, grep(page, name))
		}
	}
}

func hasLine(page, line string) bool {
	return strings.Contains(page, "\nkonnectivity_network_proxy_server_"+line+"\n")
}

// grep returns the lines of a page of metrics that contain a text.
func grep(page, text string) string {
	var out []string
	for line := range strings.Lines(page) {
		if strings.Contains(line, text) && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	testutil.Eventually(r.t, what, ok)
}

// isCut fails unless a connection ends by itself.
func (r *rig) isCut(what string, c net.Conn) {
	r.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := c.Read(make([]byte, 1))
	testutil.Holds(r.t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "%s goes on: %v", what, err)
}

// ends waits for the end of something, such as a link.
func (r *rig) ends(what string, done <-chan struct{}) {
	r.t.Helper()
	r.eventually(what, func() bool { return tunnel.Closed(done) })
}
