package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// The first connection over a path that loses large packets fails and says why, the next one is
// made, whatever lies between TLS and the socket.
func TestPathConnectsWhereLargePacketsAreLost(t *testing.T) {
	t.Parallel()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", DNS: []string{"peer"}, Server: true}))(t)
	testutil.Each(t, map[string]func(net.Conn) net.Conn{
		"a socket":             func(c net.Conn) net.Conn { return c },
		"a Conn":               func(c net.Conn) net.Conn { return tunnel.Wrap(c) },
		"a buffer of a socket": Buffered,
		"a buffer of a Conn":   func(c net.Conn) net.Conn { return Buffered(tunnel.Wrap(c)) },
	}, func(t *testing.T, under func(net.Conn) net.Conn) {
		t.Parallel()
		l := testutil.Narrow(t)
		testutil.ServeOn(t, l, func(c *net.TCPConn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}).Handshake()
		})
		var p Path
		dialer := net.Dialer{Control: p.Control}
		connect := func(bound time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			raw := testutil.Must(dialer.DialContext(ctx, "tcp", l.Addr().String()))(t)
			defer raw.Close()
			return p.Secure(ctx, tls.Client(under(raw), &tls.Config{RootCAs: ca.Pool(), ServerName: "peer"}))
		}
		began := time.Now()
		err := connect(time.Minute)
		_, unheard := errors.AsType[*UnheardError](err)
		testutil.Equal(t, unheard && errors.Is(err, context.DeadlineExceeded), true, "the first says why: %v", err)
		testutil.AtMost(t, time.Since(began), 30*time.Second, "it was given up after")
		testutil.NoError(t, connect(30*time.Second))
	})
}

// The same where only what the peer sends is lost: its first segment is full, its last is not.
func TestPathConnectsWhereLargePacketsOfThePeerAreLost(t *testing.T) {
	t.Parallel()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", DNS: []string{"peer"}, Server: true}))(t)
	at := testutil.Serve(t, func(c *net.TCPConn) {
		_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}).Handshake()
	})
	var p Path
	dialer := net.Dialer{Control: func(network, address string, raw syscall.RawConn) error {
		limitSegments(raw, 1460) // as by Ethernet
		return cmp.Or(testutil.NarrowSocket(raw), p.Control(network, address, raw))
	}}
	connect := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		raw := testutil.Must(dialer.DialContext(ctx, "tcp", at))(t)
		defer raw.Close()
		return p.Secure(ctx, tls.Client(Buffered(raw), &tls.Config{RootCAs: ca.Pool(), ServerName: "peer"}))
	}
	began := time.Now()
	err := connect(time.Minute)
	testutil.AtMost(t, time.Since(began), 30*time.Second, "it was given up after")
	unheard, _ := errors.AsType[*UnheardError](err)
	testutil.Requires(t, unheard != nil && errors.Is(err, context.DeadlineExceeded), "the first says why: %v", err)
	testutil.Equal(t, unheard.Peer, "sends what does not arrive", "who is to blame")
	testutil.NoError(t, connect(30*time.Second))
}

// A peer whose certificate is not trusted has received the handshake, even if some of it had to be
// sent again, and the alert about the certificate is not acknowledged yet.
func TestUntrustedPeersAreNotUnheard(t *testing.T) {
	t.Parallel()
	ca := testutil.Must(pki.NewCA("nobody trusts this"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", DNS: []string{"peer"}, Server: true}))(t)
	l, accepted := testutil.Narrow(t), make(chan *net.TCPConn, 1)
	testutil.ServeOn(t, l, func(c *net.TCPConn) {
		accepted <- c
		_ = tls.Server(deaf{c}, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}).Handshake()
	})
	raw := testutil.Opened(net.Dial("tcp", l.Addr().String()))(t)
	ctx := testutil.Context(t)
	var p Path
	done := testutil.Later(func() error { return p.Secure(ctx, tls.Client(raw, &tls.Config{ServerName: "peer"})) })
	peer := <-accepted
	defer peer.Close()
	testutil.Eventually(t, "the hello to be sent again", func() bool { return lookAt(raw).unheard })
	testutil.NoError(t, receive(peer, true))
	err := <-done
	testutil.Requires(t, lookAt(raw).unheard, "the alert is acknowledged")
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, unheard := errors.AsType[*UnheardError](err)
	testutil.Holds(t, untrusted && !unheard, "the error: %v", err)
	testutil.Equal(t, p.narrow(time.Now()), false, "narrow")
}

// deaf receives nothing once it has answered.
type deaf struct{ *net.TCPConn }

func (d deaf) Write(p []byte) (int, error) {
	if err := receive(d.TCPConn, false); err != nil {
		return 0, err
	}
	return d.TCPConn.Write(p)
}

// receive has a socket receive all packets or, from the network, none.
func receive(c *net.TCPConn, all bool) (err error) {
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	if all {
		filter.K = 1 << 18
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &filter})
	})
	return cmp.Or(controlErr, err)
}

// A peer that acknowledges the handshake, and does not answer it, leaves the path wide.
func TestSilentPeersAreNotUnheard(t *testing.T) {
	t.Parallel()
	l := testutil.Listen(t) // the kernel acknowledges
	raw := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer raw.Close()
	ctx := testutil.ContextFor(t, time.Second)
	var p Path
	testutil.Equal(t, p.Secure(ctx, tls.Client(raw, &tls.Config{ServerName: "peer"})), context.DeadlineExceeded, "the error")
	testutil.Equal(t, p.narrow(time.Now()), false, "narrow")
}

// Routers may divide the packets of a link once a segment was sent again: the side that dialed finds
// that in doubt, and each side as it looks.
func TestPacketsAreDividedOnceSegmentsAreSentAgain(t *testing.T) {
	t.Parallel()
	testutil.Each(t, map[string]Config{
		"in doubt": {Hello: Hello{Features: []string{FeatureResume}}, PingInterval: time.Minute},
		"a look":   {PingInterval: 100 * time.Millisecond},
	}, func(t *testing.T, cfg Config) {
		t.Parallel()
		near, far := testutil.Pair(t)
		taken := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return tunnel.Wrap(near), nil
		})
		accepted := make(chan *Session, 1)
		go func() {
			defer close(accepted)
			if ses, err := Accept(context.Background(), far, Config{Hello: cfg.Hello, Handler: &tunnel.Forwarder{Dialer: taken}}); err == nil {
				accepted <- ses
			}
		}()
		ses := testutil.Must(Connect(t.Context(), near, cfg))(t)
		peer := <-accepted
		testutil.Requires(t, peer != nil, "the link is accepted")
		defer func() { _, _ = ses.Close(), peer.Close() }()
		c := testutil.Must(ses.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
		raw := testutil.Must(near.SyscallConn())(t)
		divided := func() bool {
			how := 0
			_ = raw.Control(func(fd uintptr) { how, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER) })
			return how == unix.IP_PMTUDISC_DONT
		}
		testutil.NoError(t, receive(far, false))
		testutil.Equal(t, divided(), false, "packets are divided at first")
		testutil.Must(c.Write([]byte("lost")))(t)
		ctx, cancel := context.WithCancel(t.Context())
		dialed := make(chan struct{})
		go func() { // again and again, as one that is doubted already is not anew
			defer close(dialed)
			for ctx.Err() == nil {
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				_, _ = ses.Dial(ctx, tunnel.NewFlow("tcp", "x:1"))
				cancel()
			}
		}()
		testutil.Eventually(t, "packets to be divided", divided)
		cancel()
		<-dialed
		testutil.NoError(t, receive(far, true))
	})
}
