package httpsproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/front"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// maxWait is how long a test waits for what must happen; it is only ever used
// up by a test that fails.
const maxWait = time.Minute

// proxy is a Server on a free port of loopback.
type proxy struct {
	*Server
	addr  string
	stop  context.CancelFunc // asks Serve to end
	done  chan error         // Serve's result
	dials atomic.Int32       // of plain requests
}

// startProxy serves until the test ends; change may set options.
func startProxy(t testing.TB, change func(*Options)) *proxy {
	t.Helper()
	return startProxyOn(t, testutil.Listen(t), change)
}

func startProxyOn(t testing.TB, ln net.Listener, change func(*Options)) *proxy {
	t.Helper()
	p := &proxy{addr: ln.Addr().String(), done: make(chan error, 1)}
	o := Options{
		Options: front.Options{Forwarder: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(dialTCP)}},
		Forward: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			p.dials.Add(1)
			return dialTCP(ctx, f)
		}),
		Transport: new(http.Transport),
	}
	if change != nil {
		change(&o)
	}
	s := testutil.Must(New(o))(t)
	p.Server = s
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		testutil.Succeeds(t, testutil.Receive(t, "Serve's end", p.done), "Serve")
	})
	return p
}

// end asks Serve to end, and waits for that.
func (p *proxy) end(t testing.TB) {
	t.Helper()
	p.stop()
	p.done <- testutil.Receive(t, "Serve's end", p.done)
}

// serveConn serves one connection until it has ended.
func (s *Server) serveConn(ctx context.Context, conn tunnel.Conn) {
	ended := make(chan struct{})
	s.start(ctx, ctx.Done(), conn, func() { close(ended) })
	<-ended
}

// failing is a dialer that reaches nothing.
func failing(err error) tunnel.Dialer {
	return tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, err })
}

func dialTCP(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, f.Network, f.Address)
	if err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return tunnel.Wrap(c), nil
}

// startOrigin is an http server with handler, until the test ends.
func startOrigin(t testing.TB, handler http.HandlerFunc) (addr string) {
	t.Helper()
	ln := testutil.Listen(t)
	srv := &http.Server{Handler: handler}
	served := wait.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() { _ = srv.Close(); <-served })
	return ln.Addr().String()
}

// wire is a client that says exactly what it is told to.
type wire struct {
	*net.TCPConn
	t testing.TB
	r *bufio.Reader
}

func dialWire(t testing.TB, addr string) *wire {
	t.Helper()
	c := testutil.Must(net.Dial("tcp", addr))(t)
	_ = c.SetDeadline(time.Now().Add(maxWait))
	t.Cleanup(func() { _ = c.Close() })
	return newWire(t, c.(*net.TCPConn))
}

func newWire(t testing.TB, c *net.TCPConn) *wire {
	return &wire{TCPConn: c, t: t, r: bufio.NewReader(c)}
}

// dialProxy connects to a proxy of its own; change may set options.
func dialProxy(t testing.TB, change func(*Options)) *wire {
	t.Helper()
	return dialWire(t, startProxy(t, change).addr)
}

// get sends a request without content and returns its response.
func (w *wire) get(url string) *http.Response {
	w.t.Helper()
	w.send("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", url)
	return w.response("GET")
}

func (w *wire) send(format string, v ...any) {
	w.t.Helper()
	testutil.NoError(w.t, testutil.Err(fmt.Fprintf(w, format, v...)))
}

// line reads one line without its end.
func (w *wire) line() string {
	w.t.Helper()
	s, err := w.r.ReadString('\n')
	testutil.Requires(w.t, err == nil, "read a line: %v after %q", err, s)
	return strings.TrimRight(s, "\r\n")
}

// head reads up to and with the empty line.
func (w *wire) head() (status string, header []string) {
	w.t.Helper()
	status = w.line()
	for {
		l := w.line()
		if l == "" {
			return status, header
		}
		header = append(header, l)
	}
}

func (w *wire) response(method string) *http.Response {
	w.t.Helper()
	return testutil.Must(http.ReadResponse(w.r, &http.Request{Method: method}))(w.t)
}

// answered wants a status, and returns the content. The connection goes on.
func (w *wire) answered(status int, what string, args ...any) string {
	w.t.Helper()
	resp := w.response("GET")
	testutil.Equal(w.t, resp.StatusCode, status, what, args...)
	return body(w.t, resp)
}

func (w *wire) expect(want string) {
	w.t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(w.r, got)
	testutil.Requires(w.t, err == nil && string(got) == want, "read %q, %v; want %q", got[:n], err, want)
}

// expectEnd wants the connection to end in order, with nothing more to read.
func (w *wire) expectEnd() {
	w.t.Helper()
	testutil.Equal(w.t, string(testutil.Must(io.ReadAll(w.r))(w.t)), "", "what comes before the end")
}

// tunnelTo does a CONNECT that must succeed.
func (w *wire) tunnelTo(addr string) {
	w.t.Helper()
	w.send("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", addr, addr)
	status, _ := w.head()
	testutil.Equal(w.t, status, "HTTP/1.1 200 Connection Established", "CONNECT")
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b := testutil.Must(io.ReadAll(resp.Body))(t)
	return string(b)
}

// noDeadline is for benchmarks, which take as long as they are told.
var noDeadline time.Time

var errTest = errors.New("secret detail of 10.11.12.13")

// testCertificate is for 127.0.0.1 and proxy.test.
func testCertificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{DNS: []string{"proxy.test"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	return pair.TLS(), ca.Pool()
}

// connectInTLS is a tunnel to target through a proxy of its own, which is spoken to in TLS.
func connectInTLS(t *testing.T, target string) *tls.Conn {
	t.Helper()
	cert, pool := testCertificate(t)
	ln := tls.NewListener(testutil.Listen(t), &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	w := dialWire(t, startProxyOn(t, ln, nil).addr)
	c := tls.Client(w.TCPConn, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	testutil.Must(c.Write([]byte("CONNECT " + target + " HTTP/1.1\r\n\r\n")))(t)
	want := "HTTP/1.1 200 Connection Established\r\n\r\n"
	got := make([]byte, len(want))
	testutil.NoError(t, testutil.Err(c.Read(got)))
	testutil.Equal(t, string(got), want, "the answer")
	return c
}
