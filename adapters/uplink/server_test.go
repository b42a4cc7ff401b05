package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func TestDialByProtocol(t *testing.T) {
	for name, c := range map[string]struct {
		server          *fakeServer
		mode            link.Mode
		links, connects int64
		handshakes      int64
		fails           bool
	}{
		"link":              {newFake(t), link.Auto, 1, 0, 1, false},
		"link required":     {newFake(t), link.Require, 1, 0, 1, false},
		"link off":          {newFake(t), link.Off, 0, 3, 3, false},
		"old":               {newFake(t).Old(), link.Auto, 0, 3, 3, false},
		"old, off":          {newFake(t).Old(), link.Off, 0, 3, 3, false},
		"old, but required": {newFake(t).Old(), link.Require, 0, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.server.Start(t)
			s := client(t, at("192.0.2.1", c.server.Addr()), func(o *Options) { o.Mode = c.mode })
			for range 3 {
				err := roundTrip(t, s)
				testutil.Requires(t, c.fails == (tunnel.FailureOf(err) == tunnel.FailUnavailable) && (c.fails || err == nil), "%v", err)
			}
			testutil.Eventually(t, "the links counted", func() bool { return c.server.Links.Load() == c.links })
			testutil.Equal(t, c.server.Connects.Load(), c.connects, "CONNECTs")
			testutil.Equal(t, c.server.Handshakes.Load(), c.handshakes, "handshakes")
			testutil.Equal(t, c.connects <= 1 || c.server.Resumed.Load() > 0, true, "TLS sessions are resumed")
			testutil.Equal(t, s.Ready() != nil, c.fails, "not ready")
		})
	}
}

// Many first requests share one link. Where the server has none, the connection that
// showed that serves one of them.
func TestFirstRequestsCostNoExtraHandshake(t *testing.T) {
	target := testutil.Echo(t)
	for _, c := range []struct {
		server     *fakeServer
		handshakes int64
	}{{newFake(t), 1}, {newFake(t).Old(), 20}} {
		s := client(t, at("192.0.2.1", c.server.Start(t).Addr()), nil)
		manyRoundTrips(t, s, target, 20)
		testutil.Equal(t, c.server.Handshakes.Load(), c.handshakes, "%v: handshakes for 20 requests", c.server.Protos)
	}
}

func TestFailuresComeTyped(t *testing.T) {
	nobody := testutil.Refusing(t)
	for _, server := range []*fakeServer{newFake(t), newFake(t).Old()} {
		server.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			if strings.HasPrefix(f.Address, "nobody.example") {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: f.Address, IsNotFound: true}}
			}
			if strings.HasPrefix(f.Address, "agentless") {
				return nil, &tunnel.DialError{Failure: tunnel.FailNoAgent}
			}
			return direct(ctx, f)
		})
		server.Start(t)
		s := client(t, at("192.0.2.1", server.Addr()), nil)
		for address, want := range map[string]tunnel.Failure{
			nobody: tunnel.FailRefused, "nobody.example:80": tunnel.FailNoSuchHost, "agentless:80": tunnel.FailNoAgent, "no-port": tunnel.FailBadAddress, "x y:1": tunnel.FailBadAddress,
		} {
			testutil.Equal(t, tunnel.FailureOf(roundTripTo(t, s, address)), want, "%v, %s", server.Protos, address)
		}
		err := testutil.Err(s.Dial(t.Context(), tunnel.NewFlow("udp", "x:1")))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailBadAddress, "udp")
	}
}

// tlsFiles is a client without certificates in place.
func tlsFiles(t *testing.T) ClientTLS {
	dir := t.TempDir()
	return testutil.Must(tlsreload.New(tlsreload.Files{Cert: dir + "/tls.crt", Key: dir + "/tls.key", CA: dir + "/ca.crt"}, tlsreload.Options{Name: "server", Lenient: true}))(t)
}

// stranger is a client whose certificate no server knows.
type stranger struct {
	*testPKI
	pair pki.Pair
}

func (s stranger) Client(name string, protos ...string) *tls.Config {
	c := s.testPKI.Client(name, protos...)
	c.Certificates = []tls.Certificate{s.pair.TLS()}
	return c
}

// knowsNobody is the address of a server that has no certificate for any name.
func knowsNobody(t *testing.T) string {
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return nil, nil // crypto/tls then says unrecognized_name
	}}
	return testutil.Serve(t, func(c *net.TCPConn) { _ = tls.Server(c, config).Handshake() })
}

func TestServerOutOfReach(t *testing.T) {
	p := certs(t)
	other := testutil.Must(pki.NewCA("other"))(t)
	pair := testutil.Must(other.Issue(pki.Leaf{CommonName: "stranger", Client: true}))(t)
	old := testutil.Must(p.ca.Issue(pki.Leaf{CommonName: "old", Client: true, Lifetime: -time.Hour}))(t)
	server := newFake(t).Start(t)
	oldServer := newFake(t).Old().Start(t)
	closed := testutil.Refusing(t)
	silent := testutil.Opened(net.Listen("tcp", "127.0.0.1:0"))(t)
	nobody := knowsNobody(t)
	for name, c := range map[string]struct {
		names  *names
		tls    ClientTLS
		reason string
	}{
		"no name":          {at(), p, "the name of the konnectivity server cannot be resolved"},
		"refused":          {at("192.0.2.1", closed), p, "the konnectivity server refuses connections"},
		"black hole":       {&names{order: []string{"192.0.2.9"}}, p, "the konnectivity server does not answer in time"},
		"silent":           {at("192.0.2.1", silent.Addr().String()), p, "the konnectivity server does not answer in time"},
		"no files":         {at("192.0.2.1", server.Addr()), tlsFiles(t), "the certificates for the konnectivity server are not in place"},
		"another CA":       {at("192.0.2.1", server.Addr()), newPKI(t), "the konnectivity server shows a certificate that is not trusted"},
		"stranger":         {at("192.0.2.1", server.Addr()), stranger{p, pair}, "the konnectivity server refuses our TLS handshake"},
		"stranger, to old": {at("192.0.2.1", oldServer.Addr()), stranger{p, pair}, "the konnectivity server refuses our TLS handshake"},
		"expired": {at("192.0.2.1", server.Addr()), stranger{p, old},
			"the konnectivity server says that our client certificate has expired or is not valid yet; renew it, or correct the server's clock"},
		"name of nobody": {at("192.0.2.1", nobody), p,
			"the konnectivity server does not know the name it was asked for; check --server-name, and whether its tenant was removed or is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			s := client(t, c.names, func(o *Options) {
				o.TLS = c.tls
				if o.ConnectTimeout = testutil.Patience; strings.HasSuffix(c.reason, "in time") {
					o.ConnectTimeout = 300 * time.Millisecond
				}
			})
			start := time.Now()
			err := roundTripTo(t, s, "10.0.0.1:80")
			var dial *tunnel.DialError
			testutil.Holds(t, errors.As(err, &dial) && dial.Failure == tunnel.FailUnavailable && dial.Text() == c.reason,
				"%v, want %q", err, c.reason)
			testutil.AtMost(t, time.Since(start), 10*time.Second, "time that it took")
			testutil.Equal(t, fmt.Sprint(s.Ready()), c.reason, "what ready says")
		})
	}
}

func TestBadOptions(t *testing.T) {
	p := certs(t)
	for _, opt := range []Options{{}, {Address: "host", TLS: p}, {Address: "host:0", TLS: p}, {Address: "host:1"}, {Address: "host:1", TLS: p, Mode: "maybe"}} {
		if s, err := New(opt); err == nil {
			t.Errorf("%+v is accepted", opt)
			s.Close()
		}
	}
	opt := testutil.Must((Options{Address: "host:1", TLS: p}).withDefaults())(t)
	testutil.Equal(t, opt.ConnectTimeout, 5*time.Second, "time for a connection by default")
}

func TestCancelledRequestSparesTheOthers(t *testing.T) {
	server := newFake(t).Start(t)
	n := at("192.0.2.1", server.Addr())
	target := testutil.Echo(t)
	gaveUp := make(chan struct{})
	s := client(t, n, func(o *Options) {
		dial := o.DialTCP
		o.DialTCP = func(ctx context.Context, by *net.Dialer, address string) (net.Conn, error) {
			<-gaveUp
			return dial(ctx, by, address)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	first := testutil.Later(func() error { return testutil.Err(s.Dial(ctx, tunnel.NewFlow("tcp", target))) })
	second := testutil.Later(func() error { time.Sleep(20 * time.Millisecond); return roundTripTo(t, s, target) })
	time.Sleep(50 * time.Millisecond)
	cancel()
	testutil.Equal(t, tunnel.FailureOf(<-first), tunnel.FailCancelled, "the one who gave up")
	close(gaveUp)
	testutil.Succeeds(t, <-second, "the one who waited")
	testutil.Equal(t, server.Handshakes.Load(), 1, "handshakes")
}

// A link that breaks while a dial is under way must not fail it if another
// link, or a new one, can carry it.
func TestDialSurvivesALostLink(t *testing.T) {
	target := testutil.Echo(t)
	server := newFake(t)
	hold := make(chan struct{}, 1)
	var first atomic.Bool
	server.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if first.CompareAndSwap(false, true) {
			hold <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return direct(ctx, f)
	})
	server.Start(t)
	s := client(t, at("192.0.2.1", server.Addr()), nil)
	result := testutil.Later(func() error { return roundTripTo(t, s, target) })
	<-hold
	server.Cut()
	testutil.NoError(t, <-result)
}

// A dial whose link broke counts as struck also where the next server knows of no
// agent: the connection may be there, and its opener asks for it again. What the
// other server said is not touched.
func TestDialStaysLostInFlight(t *testing.T) {
	first, second := newFake(t), newFake(t)
	var dials atomic.Int32
	dialer := func(own *fakeServer) tunnel.Dialer {
		return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			if dials.Add(1) > 1 {
				return nil, &tunnel.DialError{Failure: tunnel.FailNoAgent, Address: f.Address}
			}
			own.Cut()
			<-ctx.Done()
			return nil, ctx.Err()
		})
	}
	first.Dialer, second.Dialer = dialer(first), dialer(second)
	first.Start(t)
	second.Start(t)
	s := client(t, at("192.0.2.1", first.Addr(), "192.0.2.2", second.Addr()), nil)
	runLinked(t, s, 2)
	_, err := s.dial(t.Context(), tunnel.NewFlow("tcp", "192.0.2.9:1"))
	if tunnel.FailureOf(err) != tunnel.FailNoAgent || !tunnel.LostInFlight(err) || dials.Load() < 2 {
		t.Errorf("%v after %d dials, struck: %v", err, dials.Load(), tunnel.LostInFlight(err))
	}
}
