package hostile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// clientTLS is what the suite's client dials the server with.
func clientTLS(t testing.TB, s *suite.Suite, protocols ...string) *tls.Config {
	t.Helper()
	pair := must(tls.LoadX509KeyPair(s.PKI("client.crt"), s.PKI("client.key")))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(s.PKI("ca.crt")))(t))
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "localhost", NextProtos: protocols}
}

// dialFrom connects by TLS from one of this machine's addresses: with one
// certificate for all, they are as many clients.
func dialFrom(ctx context.Context, from, address string, config *tls.Config) (net.Conn, error) {
	d := tls.Dialer{Config: config, NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}}
	return d.DialContext(ctx, "tcp", address)
}

// linkFrom is a sidecar's link.
func linkFrom(t testing.TB, s *suite.Suite, srv *suite.Server, from string) *link.Session {
	t.Helper()
	conn := must(dialFrom(t.Context(), from, suite.Loopback(srv.ClientPort), clientTLS(t, s, link.ALPN)))(t)
	ses := must(link.Connect(t.Context(), conn, link.Config{Hello: link.Hello{Role: link.RoleClient, ID: from}}))(t)
	t.Cleanup(func() { ses.Close() })
	return ses
}

// neighbour is a client that does what clients do: it dials, and it has
// connections that carry a message now and then.
type neighbour struct {
	ses    *link.Session
	target string

	dials, failed atomic.Int64
	hurt          atomic.Int64
}

const (
	dialers = 4  // at once
	held    = 10 // connections

	// thinkTime is between two dials of a dialer. Without it the neighbour alone
	// takes all of the machine, and half of that is more than what is left once
	// the attacker has spent as much on its own side of each dial.
	thinkTime = 2 * time.Millisecond
)

// neighbourOf starts one; its connections are open when this returns.
func neighbourOf(t *testing.T, s *suite.Suite, srv *suite.Server) *neighbour {
	n := &neighbour{ses: linkFrom(t, s, srv, "127.0.0.9"), target: testutil.Echo(t)}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for range held {
		c := must(n.ses.Dial(ctx, tunnel.NewFlow("tcp", n.target)))(t)
		work.Go(func() { n.hold(ctx, c) })
	}
	for range dialers {
		work.Go(func() { n.dial(t, ctx) })
	}
	t.Cleanup(func() { cancel(); work.Wait() })
	return n
}

// hold has a message carried to and fro; a connection that fails was hurt.
func (n *neighbour) hold(ctx context.Context, c net.Conn) {
	defer c.Close()
	for pace(ctx, 50*time.Millisecond) {
		if roundTrip(c) != nil && ctx.Err() == nil {
			n.hurt.Add(1)
			return
		}
	}
}

func roundTrip(c net.Conn) error {
	message := make([]byte, 2000)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(c, message)
	return err
}

// dial opens one connection after the other.
func (n *neighbour) dial(t *testing.T, ctx context.Context) {
	for pace(ctx, thinkTime) {
		c, err := n.ses.Dial(ctx, tunnel.NewFlow("tcp", n.target))
		switch {
		case errors.Is(err, context.Canceled) || ctx.Err() != nil:
		case err != nil:
			testutil.Holds(t, n.failed.Add(1) != 1, "the neighbour's dial: %v", err)
			pace(ctx, 10*time.Millisecond)
		default:
			n.dials.Add(1)
			c.Close()
		}
	}
}

// rate is how many dials a second it has in the time to come.
func (n *neighbour) rate(over time.Duration) float64 {
	before, start := n.dials.Load(), time.Now()
	time.Sleep(over)
	return float64(n.dials.Load()-before) / time.Since(start).Seconds()
}
