package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// transports are what every stream test runs over.
var transports = map[string]func(testing.TB) (net.Conn, net.Conn){
	"pipe": func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() },
	"tcp":  tcpPair,
	"tls":  tlsPair,
}

// patience is how long a test waits for what must happen, also on a busy machine.
const patience = time.Minute

func tcpPair(t testing.TB) (net.Conn, net.Conn) { return testutil.Pair(t) }

// tlsPair is a TLS connection with write buffers, as in the programs.
func tlsPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", DNS: []string{"peer"}, Server: true, Client: true}))(t)
	near, far := tcpPair(t)
	client := tls.Client(link.Buffered(near), &tls.Config{RootCAs: ca.Pool(), ServerName: "peer", NextProtos: []string{link.ALPN}, DynamicRecordSizingDisabled: true})
	server := tls.Server(link.Buffered(far), &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{link.ALPN}, DynamicRecordSizingDisabled: true})
	done := testutil.Later(server.Handshake)
	testutil.NoError(t, client.Handshake())
	testutil.NoError(t, <-done)
	return client, server
}

// sessions starts a link over the two ends of a transport.
func sessions(t testing.TB, near, far net.Conn, a, b link.Config) (*link.Session, *link.Session) {
	t.Helper()
	type result struct {
		ses *link.Session
		err error
	}
	accepted := testutil.Later(func() result {
		ses, err := link.Accept(context.Background(), far, b)
		return result{ses, err}
	})
	first, err := link.Connect(context.Background(), near, a)
	second := <-accepted
	testutil.NoError(t, err)
	testutil.NoError(t, second.err)
	t.Cleanup(func() { first.Close(); second.ses.Close() })
	return first, second.ses
}

// hand is a Handler that hands streams over and lets them live on their own, without a
// goroutine that waits.
type hand chan tunnel.Conn

func (h hand) Serve(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	near, err := answer(nowhere{}, nil)
	if err == nil {
		h <- near
	}
	ended(err)
}

// nowhere is a far end with addresses and nothing else.
type nowhere struct{ tunnel.Conn }

func (nowhere) LocalAddr() net.Addr { return tunnel.Addr{Net: "tcp", Text: "127.0.0.1:1"} }

func (nowhere) RemoteAddr() net.Addr { return tunnel.Addr{Net: "tcp", Text: "127.0.0.1:2"} }

// streamPair opens a stream over a fresh link and returns its two ends, the
// opener's first. The opener is the side that dialed, or with reverse the one
// that accepted, as a server does toward its agents.
func streamPair(t testing.TB, transport string, reverse bool) (opener, acceptor tunnel.Conn) {
	t.Helper()
	near, far := transports[transport](t)
	ends := make(hand, 1)
	a, b := sessions(t, near, far, link.Config{Handler: ends}, link.Config{Handler: ends})
	if reverse {
		a = b
	}
	opener = testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
	return opener, <-ends
}

func TestNettest(t *testing.T) {
	for name := range transports {
		for _, reverse := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/forward", true: "/reverse"}[reverse], func(t *testing.T) {
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					a, b := streamPair(t, name, reverse)
					return a, b, func() { a.Close(); b.Close() }, nil
				})
			})
		}
	}
}

func TestDialErrorsAreTyped(t *testing.T) {
	near, far := tcpPair(t)
	dialer := tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Address == "denied:1" {
			return nil, &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "not on my watch"}
		}
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	})
	a, _ := sessions(t, near, far, link.Config{}, link.Config{Handler: &tunnel.Forwarder{Dialer: dialer}})
	fails := func(ctx context.Context, address string, want tunnel.Failure) error {
		t.Helper()
		_, err := a.Dial(ctx, tunnel.NewFlow("tcp", address))
		testutil.Equal(t, tunnel.FailureOf(err), want, "the failure of a dial to %q", address)
		return err
	}
	err := fails(t.Context(), "denied:1", tunnel.FailDenied)
	testutil.Equal(t, tunnel.AsDialError("", err).Reason, "not on my watch", "the reason")
	_ = fails(t.Context(), "other:1", tunnel.FailRefused)
	_ = fails(t.Context(), "", tunnel.FailBadAddress)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_ = fails(over, "x:1", tunnel.FailCancelled)
	testutil.Equal(t, a.Streams(), 0, "streams left after failed dials")
}

func TestVerifyRefuses(t *testing.T) {
	near, far := tcpPair(t)
	done := make(chan error, 1)
	go func() {
		_, err := link.Accept(context.Background(), far, link.Config{Verify: func(_ context.Context, h link.Hello) error {
			testutil.Holds(t, h.ID == "agent-1" && h.Token == "secret" && h.Role == link.RoleAgent && h.Identifiers == "ipv4=1.2.3.4",
				"hello arrived as %+v", h)
			return errors.New("token expired: get a new one")
		}})
		done <- err
	}()
	_, err := link.Connect(t.Context(), near, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "agent-1", Token: "secret", Identifiers: "ipv4=1.2.3.4"}})
	var refused *link.GoAwayError
	testutil.Requires(t, errors.As(err, &refused) && refused.Code == link.GoAwayRefused && refused.Text == "token expired: get a new one",
		"got %v, want the refusal and its reason", err)
	testutil.Fails(t, <-done, "Accept of what Verify refused")
}

func TestTokenStaysOutOfText(t *testing.T) {
	h := link.Hello{ID: "a", Token: "hush"}
	s := fmt.Sprintf("%v %+v %#v %s", h, h, h, h)
	testutil.Equal(t, strings.Contains(s, "hush"), false, "a token in %q", s)
}
