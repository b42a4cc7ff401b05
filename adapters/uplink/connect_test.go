package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// unused is a connection behind its handshake, and the server's end of it.
func unused(t *testing.T) (h handshaken, server net.Conn) {
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"server"}, Server: true}))(t)
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	h = handshaken{Conn: tls.Client(near, &tls.Config{ServerName: "server", RootCAs: ca.Pool()})}
	var accepted sync.WaitGroup
	accepted.Go(func() {
		_ = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, SessionTicketsDisabled: true}).Handshake()
	})
	testutil.NoError(t, h.Handshake())
	accepted.Wait()
	return h, far
}

// closed says whether the other end has closed the connection.
func closed(server net.Conn) bool {
	_ = server.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := server.Read(make([]byte, 1))
	return err == io.EOF
}

// newTestSession is a session whose server cannot be reached by another connection.
func newTestSession(t *testing.T, spare *handshaken) *connectSession {
	opt, err := Options{Address: "192.0.2.1:1", TLS: newPKI(t), DialTCP: func(context.Context, *net.Dialer, string) (net.Conn, error) {
		return nil, errors.New("refused")
	}}.withDefaults()
	testutil.NoError(t, err)
	s := newConnector(opt, newHealth(t.Context(), opt), link.NewBudget(0), nil).newConnectSession(netip.MustParseAddrPort("192.0.2.1:1"), spare)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// The connection that showed a server to be without links is for one request.
func TestSpareConnectionIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, server := unused(t)
		s := newTestSession(t, &h)
		got := s.take()
		testutil.Requires(t, got != nil && got.Conn == h.Conn, "what is taken: %+v", got)
		testutil.Equal(t, s.take() == nil, true, "there is no connection for a second request")
		time.Sleep(2 * spareTime)
		testutil.NoError(t, s.Close())
		testutil.Equal(t, closed(server), false, "a connection that was taken is closed")
	})
}

// heldSink takes nothing before taken is closed.
type heldSink struct {
	tunnel.Sink
	taken chan struct{}
}

func (s heldSink) Nonblocking() bool { return false }

func (s heldSink) WriteChunks(c []tunnel.Chunk) error {
	<-s.taken
	return s.Sink.WriteChunks(c)
}

// A connection that is closed behind the end of the other direction, unread, or right before it
// comes, still sends all bytes written to it.
func TestCloseBesideUnreadEndLosesNothing(t *testing.T) {
	defer func(was time.Duration) { sendTime = was }(sendTime)
	for _, before := range []bool{true, false} {
		if !before && runtime.GOOS != "linux" {
			continue
		}
		if sendTime = time.Minute; before {
			sendTime = 0
		}
		got, ends, taken := make(chan int64, 1), make(chan struct{}), make(chan struct{})
		target := testutil.Serve(t, func(c *net.TCPConn) {
			<-ends
			_ = c.CloseWrite()
			n, _ := io.Copy(io.Discard, c)
			got <- n
		})
		server := newFake(t).Old()
		server.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			c, err := direct(ctx, f)
			return tunnel.With(c, tunnel.Parts{Out: heldSink{c.Out(), taken}}), err
		})
		s := client(t, at("10.0.0.1", server.Start(t).Addr()), nil)
		run(t, s)
		c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
		payload := make([]byte, 384<<10)
		testutil.Must(c.Write(payload))(t)
		if before {
			close(ends)
			socket, _ := tunnel.Under[syscall.Conn](c)
			tunnel.AwaitInput(testutil.Must(tunnel.RawConn(socket))(t))
			testutil.Succeeds(t, c.Close(), "Close")
			close(taken)
		} else {
			time.AfterFunc(50*time.Millisecond, func() { close(ends) })
			time.AfterFunc(100*time.Millisecond, func() { close(taken) })
			testutil.Succeeds(t, c.Close(), "Close")
		}
		testutil.Equal(t, <-got, int64(len(payload)), "bytes that arrived where the end was there before: %v;", before)
	}
}

// It waits for a time, and no longer than its session. What its server says of it is
// what the server says of us.
func TestSpareConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, server := unused(t)
		s := newTestSession(t, &h)
		time.Sleep(listenTime + time.Second)
		testutil.Equal(t, s.health.good(), true, "a server that is silent is good")
		time.Sleep(spareTime)
		synctest.Wait()
		testutil.Equal(t, s.take() == nil && closed(server), true, "it is given up after its time")
		h, server = unused(t)
		s = newTestSession(t, &h)
		_ = server.Close()
		time.Sleep(listenTime + time.Second)
		testutil.Equal(t, s.health.good(), false, "a server that hangs up has taken us")
		testutil.Equal(t, tunnel.Closed(s.Done()), true, "its session ended")
		h, server = unused(t)
		testutil.NoError(t, newTestSession(t, &h).Close())
		testutil.Equal(t, closed(server), true, "the session's end closes it")
	})
}

// A session ends once its server cannot be reached any more: by a look at the server,
// or by a request, which is told why.
func TestConnectSessionEndsWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := newTestSession(t, nil)
		time.Sleep(probeEvery + time.Second)
		used := newTestSession(t, nil)
		testutil.Equal(t, tunnel.Closed(idle.Done()), true, "the idle one ended")
		testutil.Equal(t, tunnel.Closed(used.Done()), false, "the used one ended at the look after 30 s")
		_, err := used.Dial(t.Context(), tunnel.NewFlow("tcp", "192.0.2.9:1"))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailUnavailable, "the failure")
		testutil.Equal(t, tunnel.Closed(used.Done()) && !used.health.good(), true, "it ended")
	})
}

// A request that is given up says nothing about the server.
func TestConnectSessionOutlivesARequestThatIsGivenUp(t *testing.T) {
	s := newTestSession(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Dial(ctx, tunnel.NewFlow("tcp", "192.0.2.9:1")); err == nil || tunnel.Closed(s.Done()) || s.health.failures.Load() > 0 {
		t.Errorf("%v, ended: %v", err, tunnel.Closed(s.Done()))
	}
}
