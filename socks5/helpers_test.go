package socks5

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/net/proxy"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// direct dials as it is told.
var direct = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, f.Network, f.Address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
})

// failing never reaches anything.
func failing(f tunnel.Failure) tunnel.Dialer {
	return tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return nil, &tunnel.DialError{Failure: f}
	})
}

// blocked reports each dial and lets it wait until it is cancelled.
func blocked() (d tunnel.Dialer, dialing, cancelled chan string) {
	dialing, cancelled = make(chan string, 16), make(chan string, 16)
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		dialing <- f.Address
		<-ctx.Done()
		cancelled <- context.Cause(ctx).Error()
		return nil, ctx.Err()
	}), dialing, cancelled
}

func newServer(t testing.TB, o Options, d tunnel.Dialer) *Server {
	t.Helper()
	if o.Forwarder == nil {
		o.Forwarder = &tunnel.Forwarder{Dialer: d}
	}
	return testutil.Must(New(o))(t)
}

// patient has a dial by d take as long as it likes.
func patient(d tunnel.Dialer) Options {
	return Options{Options: front.Options{Forwarder: &tunnel.Forwarder{Dialer: d, DialTimeout: time.Hour}}}
}

// serving is a server on a loopback port.
type serving struct {
	*Server
	addr string
	stop func() error // cancels and returns what Serve returned; may be called again
}

func serve(t testing.TB, o Options, d tunnel.Dialer) *serving {
	t.Helper()
	return serveOn(t, newServer(t, o, d), testutil.Listen(t))
}

func serveOn(t testing.TB, s *Server, ln net.Listener) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := testutil.Later(func() error { return s.Serve(ctx, ln) })
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(testutil.Patience):
			return errors.New("Serve did not return")
		}
	})
	t.Cleanup(func() { testutil.Succeeds(t, stop(), "Serve") })
	return &serving{Server: s, addr: ln.Addr().String(), stop: stop}
}

// serveConn serves one connection until it has ended.
func (s *Server) serveConn(ctx context.Context, conn tunnel.Conn) {
	ended := make(chan struct{})
	s.start(ctx, conn, func() { close(ended) })
	<-ended
}

// pipe serves one end of a pipe, and returns the other one and what is closed once
// the server is done with it.
func (s *Server) pipe() (client net.Conn, done chan struct{}) {
	client, conn := net.Pipe()
	done = make(chan struct{})
	go func() { defer close(done); s.serveConn(context.Background(), tunnel.Wrap(conn)) }()
	return client, done
}

// echo answers once its client has finished, so it needs half-close.
func echo(c *net.TCPConn) {
	all, _ := io.ReadAll(c)
	_, _ = c.Write(all)
	_ = c.CloseWrite()
}

func connect(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c := testutil.Opened(net.Dial("tcp", addr))(t)
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return c.(*net.TCPConn)
}

// through opens address by the real client of x/net over c.
func through(c net.Conn, address string, auth *proxy.Auth) error {
	d, err := proxy.SOCKS5("tcp", "unused", auth, nil)
	if err != nil {
		return err
	}
	_, err = d.(interface {
		DialWithConn(ctx context.Context, c net.Conn, network, address string) (net.Addr, error)
	}).DialWithConn(context.Background(), c, "tcp", address)
	return err
}

// mustThrough is a connection to address by s.
func mustThrough(t testing.TB, s *serving, address string) *net.TCPConn {
	t.Helper()
	c := connect(t, s.addr)
	testutil.NoError(t, through(c, address, nil))
	_ = c.SetDeadline(time.Now().Add(testutil.Patience)) // the client has cleared it
	return c
}

// logBuffer collects log lines of every level.
func logBuffer() (logrus.FieldLogger, *testutil.Output) {
	l, lines := logrus.New(), new(testutil.Output)
	l.SetLevel(logrus.TraceLevel)
	l.SetOutput(lines)
	return l, lines
}
