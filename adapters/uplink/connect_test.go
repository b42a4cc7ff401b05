package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
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
	ca, err := pki.NewCA("test")
	testutil.NoError(t, err)
	pair, err := ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"server"}, Server: true})
	testutil.NoError(t, err)
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
	opt, err := Options{Address: "192.0.2.1:1", TLS: newPKI(t), DialTCP: func(context.Context, string, string) (net.Conn, error) {
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
		if got := s.take(); got == nil || got.Conn != h.Conn {
			t.Errorf("%+v", got)
		}
		if s.take() != nil {
			t.Error("one connection serves two requests")
		}
		time.Sleep(2 * spareTime)
		testutil.NoError(t, s.Close())
		if closed(server) {
			t.Error("a connection that was taken is closed")
		}
	})
}

// It waits for a time, and no longer than its session. What its server says of it is
// what the server says of us.
func TestSpareConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, server := unused(t)
		s := newTestSession(t, &h)
		time.Sleep(listenTime + time.Second)
		if !s.health.good() {
			t.Error("a server that is silent has taken us")
		}
		time.Sleep(spareTime)
		synctest.Wait()
		if s.take() != nil || !closed(server) {
			t.Error("it waits for longer than its time")
		}
		h, server = unused(t)
		s = newTestSession(t, &h)
		_ = server.Close()
		time.Sleep(listenTime + time.Second)
		if s.health.good() || !tunnel.Closed(s.Done()) {
			t.Error("a server that hangs up has not taken us")
		}
		h, server = unused(t)
		testutil.NoError(t, newTestSession(t, &h).Close())
		if !closed(server) {
			t.Error("the session's end leaves it open")
		}
	})
}

// A session ends once its server cannot be reached any more: by a look at the server,
// or by a request, which is told why.
func TestConnectSessionEndsWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := newTestSession(t, nil)
		time.Sleep(probeEvery + time.Second)
		used := newTestSession(t, nil)
		if !tunnel.Closed(idle.Done()) || tunnel.Closed(used.Done()) {
			t.Error("the look at the server after 30 s decides")
		}
		_, err := used.Dial(t.Context(), tunnel.NewFlow("tcp", "192.0.2.9:1"))
		if tunnel.FailureOf(err) != tunnel.FailUnavailable || !tunnel.Closed(used.Done()) || used.health.good() {
			t.Errorf("%v, ended: %v", err, tunnel.Closed(used.Done()))
		}
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
