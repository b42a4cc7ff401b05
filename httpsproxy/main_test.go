package httpsproxy

import (
	"bufio"
	"context"
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
	"konnectivity/internal/testutil"
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
		select {
		case err := <-p.done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(maxWait):
			t.Error("Serve did not return")
		}
	})
	return p
}

// end asks Serve to end, and waits for that.
func (p *proxy) end(t testing.TB) {
	t.Helper()
	p.stop()
	p.done <- receive(t, "Serve's end", p.done)
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
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
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
	if _, err := fmt.Fprintf(w, format, v...); err != nil {
		w.t.Fatalf("send: %v", err)
	}
}

// line reads one line without its end.
func (w *wire) line() string {
	w.t.Helper()
	s, err := w.r.ReadString('\n')
	if err != nil {
		w.t.Fatalf("read a line: %v after %q", err, s)
	}
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
	resp, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("read the response: %v", err)
	}
	return resp
}

func (w *wire) expect(want string) {
	w.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(w.r, got); err != nil || string(got) != want {
		w.t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

// expectEnd wants the connection to end in order, with nothing more to read.
func (w *wire) expectEnd() {
	w.t.Helper()
	if b, err := io.ReadAll(w.r); err != nil || len(b) != 0 {
		w.t.Fatalf("read %q, %v; want the end", b, err)
	}
}

// tunnelTo does a CONNECT that must succeed.
func (w *wire) tunnelTo(addr string) {
	w.t.Helper()
	w.send("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", addr, addr)
	if status, _ := w.head(); status != "HTTP/1.1 200 Connection Established" {
		w.t.Fatalf("CONNECT: %s", status)
	}
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the content: %v after %d bytes", err, len(b))
	}
	return string(b)
}

// receive waits for a value from a channel, or for its end.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(maxWait):
		t.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

// noDeadline is for benchmarks, which take as long as they are told.
var noDeadline time.Time

var errTest = errors.New("secret detail of 10.11.12.13")
