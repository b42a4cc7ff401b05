package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

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
	for name, under := range map[string]func(net.Conn) net.Conn{
		"a socket":             func(c net.Conn) net.Conn { return c },
		"a Conn":               func(c net.Conn) net.Conn { return tunnel.Wrap(c) },
		"a buffer of a socket": Buffered,
		"a buffer of a Conn":   func(c net.Conn) net.Conn { return Buffered(tunnel.Wrap(c)) },
	} {
		t.Run(name, func(t *testing.T) {
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
			err := connect(3 * time.Second)
			_, unheard := errors.AsType[*UnheardError](err)
			testutil.Equal(t, unheard && errors.Is(err, context.DeadlineExceeded), true, "the first says why: %v", err)
			testutil.NoError(t, connect(30*time.Second))
		})
	}
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
	err := connect(5 * time.Second)
	unheard, _ := errors.AsType[*UnheardError](err)
	testutil.Requires(t, unheard != nil && errors.Is(err, context.DeadlineExceeded), "the first says why: %v", err)
	testutil.Equal(t, unheard.Peer, "sends what does not arrive", "who is to blame")
	testutil.NoError(t, connect(30*time.Second))
}

// A peer that acknowledges the handshake, and does not answer it, leaves the path wide.
func TestSilentPeersAreNotUnheard(t *testing.T) {
	t.Parallel()
	l := testutil.Listen(t) // the kernel acknowledges
	raw := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer raw.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var p Path
	testutil.Equal(t, p.Secure(ctx, tls.Client(raw, &tls.Config{ServerName: "peer"})), context.DeadlineExceeded, "the error")
	testutil.Equal(t, p.narrow(time.Now()), false, "narrow")
}
