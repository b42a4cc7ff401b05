package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// meant is where clients of these tests mean to connect.
const meant = "192.0.2.1:80"

// serving is a server on a loopback port to which everything was redirected.
type serving struct {
	*Bare
	addr string
	stop func() error // cancels and returns what Serve returned; may be called again
}

func serve(t *testing.T, o Options, d tunnel.DialerFunc) *serving {
	t.Helper()
	return serveFrom(t, func(net.Conn) (netip.AddrPort, error) { return netip.MustParseAddrPort(meant), nil }, o, d)
}

func serveFrom(t *testing.T, original func(net.Conn) (netip.AddrPort, error), o Options, d tunnel.DialerFunc) *serving {
	t.Helper()
	o.Forwarder = &tunnel.Forwarder{Dialer: d}
	s := testutil.Must(newRedirected(o, original))(t)
	ln := testutil.Listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := testutil.Later(func() error { return s.Serve(ctx, ln) })
	stop := sync.OnceValue(func() error { cancel(); return testutil.Receive(t, "Serve's end", ended) })
	t.Cleanup(func() {
		testutil.Succeeds(t, stop(), "Serve")
	})
	return &serving{Bare: s, addr: ln.Addr().String(), stop: stop}
}

func connect(t *testing.T, s *serving) *net.TCPConn {
	t.Helper()
	c := testutil.Opened(net.Dial("tcp", s.addr))(t)
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return c.(*net.TCPConn)
}

// echoing dials something that answers once its client has finished.
func echoing(delay time.Duration) tunnel.DialerFunc {
	return func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		time.Sleep(delay)
		near, far, err := testutil.Connected()
		if err != nil {
			return nil, err
		}
		go func() {
			defer far.Close()
			all, _ := io.ReadAll(far)
			_, _ = far.Write(append([]byte(f.Address+" "), all...))
		}()
		return tunnel.Wrap(near), nil
	}
}

// refuses says whether a new connection is reset, which may be before the client
// knows that it has one.
func refuses(s *serving) bool {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return errors.Is(err, syscall.ECONNRESET)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return isReset(c)
}

// isReset says whether the connection was reset, and not ended in order.
func isReset(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, syscall.ECONNRESET)
}

// What a client sends while its destination is dialed comes first and whole,
// whether it fits what is read ahead or not, and the end of either direction
// passes.
func TestRelaysToTheOriginalDestination(t *testing.T) {
	for _, size := range []int{1, admission.AheadSize, admission.AheadSize + 1, 300_000} {
		for _, delay := range []time.Duration{0, 40 * time.Millisecond} {
			s := serve(t, Options{Drain: testutil.Patience}, echoing(delay))
			payload := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
			c := connect(t, s)
			go func() { _, _ = c.Write(payload); time.Sleep(delay / 2); _ = c.CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || string(got) != meant+" "+string(payload) {
				t.Errorf("%d bytes, dial takes %v: %d bytes came back, %v", size, delay, len(got), err)
			}
		}
	}
}

func TestConnectionsThatWereNotRedirectedAreRefused(t *testing.T) {
	dialed := func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		t.Error("one was dialed")
		return nil, errors.New("no")
	}
	for name, original := range map[string]func(net.Conn) (netip.AddrPort, error){
		"the kernel's":     original,
		"the port itself":  func(c net.Conn) (netip.AddrPort, error) { return localAddress(c), nil },
		"one not kept for": func(net.Conn) (netip.AddrPort, error) { return netip.AddrPort{}, syscall.ENOENT },
	} {
		s := serveFrom(t, original, Options{}, dialed)
		testutil.Holds(t, refuses(s), "%s: the connection was not reset", name)
		testutil.Eventually(t, "its slot is given back", func() bool { return s.Slots.Count() == 0 })
		testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(reasonNotRedirected)), 1,
			"%s: were counted", name)
	}
}

func TestFailedDialResetsTheClient(t *testing.T) {
	var lines strings.Builder
	log := logrus.New()
	log.SetFormatter(&logrus.JSONFormatter{})
	log.SetOutput(&lines)
	s := serve(t, Options{AccessLog: true, Log: log}, func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
	})
	testutil.Holds(t, refuses(s), "the client was not reset")
	_ = s.stop()
	testutil.Equal(t, promtest.ToFloat64(s.Metrics.Requests.WithLabelValues("refused")), 1, "refused requests")
	var line map[string]any
	err := json.Unmarshal([]byte(lines.String()), &line)
	testutil.Requires(t, err == nil, "%v %v", err, lines.String())
	testutil.Holds(t, line["msg"] == "connection failed" && line["front"] == "transparent" && line["destination"] == meant &&
		line["outcome"] == "refused" && line["client"] != "", "logged %v", line)
}

// One who leaves during the dial takes the dial along.
func TestDialEndsWithItsClient(t *testing.T) {
	dialing, left := make(chan struct{}), make(chan error, 1)
	s := serve(t, Options{}, func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
		close(dialing)
		<-ctx.Done()
		left <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	c := connect(t, s)
	<-dialing
	_ = c.Close()
	testutil.Contains(t, testutil.Receive(t, "the dial's end", left).Error(), "left", "the dial's end")
	testutil.Eventually(t, "it is counted", func() bool {
		return promtest.ToFloat64(s.Metrics.Requests.WithLabelValues(tunnel.FailCancelled.Label())) == 1
	})
}

func TestLimitOfOpenConnections(t *testing.T) {
	s := serve(t, Options{Descriptors: 8}, echoing(0)) // which allow two
	open := []*net.TCPConn{connect(t, s), connect(t, s)}
	testutil.Eventually(t, "two are open", func() bool { return s.Slots.Count() == 2 })
	for range 3 {
		testutil.Requires(t, refuses(s), "a third connection got in")
	}
	testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(ReasonLimit)), 3, "refused connections")
	_, _ = open[0].Write([]byte("x"))
	_ = open[0].CloseWrite()
	testutil.Succeeds(t, testutil.Err(io.ReadAll(open[0])), "an open connection was cut")
	testutil.Eventually(t, "its slot is free", func() bool { return s.Slots.Count() == 1 })
	_ = connect(t, s)
	testutil.Eventually(t, "the free slot is used", func() bool { return s.Slots.Count() == 2 })
}
