package hostile

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// crowd is how many connections a stranger keeps open: more than a server
// should hold, and well below what a process may have open.
const crowd = 9000

// survive attacks srv for the duration and holds it to the bounds, while agents
// join by the flags more.
func survive(t *testing.T, s *suite.Suite, srv *suite.Server, floods []*flood, more ...string) {
	t.Helper()
	figures := watch(t, srv.Process, srv.HealthURL("/healthz"))
	for _, f := range floods {
		defer f.start(t)()
	}
	time.Sleep(*duration / 5) // so that the crowd is there
	joins, longest := joinUntil(t, s, srv, time.Now().Add(*duration*4/5), more...)
	got := figures()
	got.joins, got.join = joins, longest
	for _, f := range floods {
		got.opened += f.opened.Load()
	}
	got.within(t)
}

// halfHello is most of a ClientHello that claims to have 65,000 bytes.
func halfHello() string {
	const claimed, record = 65_000, 16_000
	hello := "\x01\x00" + string([]byte{claimed >> 8, claimed & 0xff}) + "\x03\x03" + strings.Repeat("x", 60_000)
	var b strings.Builder
	for len(hello) > 0 {
		n := min(len(hello), record)
		b.WriteString("\x16\x03\x01" + string([]byte{byte(n >> 8), byte(n)}) + hello[:n])
		hello = hello[n:]
	}
	return b.String()
}

func TestUnfinishedClientHellos(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	hello := halfHello()
	survive(t, s, srv, []*flood{{address: suite.Loopback(srv.AgentPort), count: crowd,
		attack: func(c net.Conn) { _, _ = io.WriteString(c, hello) }}})
}

func TestSilence(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	survive(t, s, srv, []*flood{{address: suite.Loopback(srv.AgentPort), count: crowd}})
}

// sayPreface goes through TLS without a certificate, and as far as HTTP/2 goes
// without a request.
func sayPreface(c net.Conn) {
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	_, _ = io.WriteString(secure, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
}

// Where agents need no certificate, TLS proves nothing.
func TestPrefacesAndNothing(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer("--cluster-ca-cert=", "--allow-unauthenticated-agents"))(t)
	f := &flood{address: suite.Loopback(srv.AgentPort), count: crowd / 6, attack: sayPreface}
	survive(t, s, srv, []*flood{f}, "--agent-cert=", "--agent-key=")
}

// A silent connection is no connection of the port's.
func TestSilenceTakesNobodysPlace(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer("--max-connections=200"))(t)
	survive(t, s, srv, []*flood{{address: suite.Loopback(srv.AgentPort), count: 300}})
}

// Health is answered and agents get in however few descriptors there are.
func TestFewDescriptors(t *testing.T) {
	s := newSuite(t)
	s.Descriptors = 256
	srv := must(s.StartServer())(t)
	s.Descriptors = 0
	survive(t, s, srv, []*flood{
		{address: suite.Loopback(srv.AgentPort), count: 1000},
		{address: suite.Loopback(srv.ClientPort), count: 1000},
		{address: suite.Loopback(srv.HealthPort), count: 1000, from: []string{"127.0.0.2"}}, // nobody floods from where kubelet is
	})
}

// flood keeps connections to one address open for as long as it lasts: one that
// the other end closes is opened again after a moment.
type flood struct {
	address string
	from    []string       // local addresses, taken in turn; empty: any
	count   int            // connections at once
	attack  func(net.Conn) // what each does once it is open; nil: nothing

	opened, open atomic.Int64
}

// again is how long a connection that was closed waits before it comes back.
const again = 500 * time.Millisecond

// start begins the flood; stop ends it and waits for its end.
func (f *flood) start(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	for i := range f.count {
		conns.Go(func() {
			for ctx.Err() == nil {
				f.connect(ctx, i)
				pace(ctx, again)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); conns.Wait() })
	t.Cleanup(stop)
	return stop
}

// connect is one connection's life.
func (f *flood) connect(ctx context.Context, i int) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if len(f.from) > 0 {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(f.from[i%len(f.from)])}
	}
	c, err := dialer.DialContext(ctx, "tcp", f.address)
	if err != nil {
		return
	}
	f.opened.Add(1)
	f.open.Add(1)
	defer f.open.Add(-1)
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // leaves no TIME_WAIT behind, which would use up the ports
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if f.attack != nil {
		f.attack(c)
	}
	_, _ = io.Copy(io.Discard, c)
}
