package hostile

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// maxDestination is what each process may hold for a hostile destination.
const maxDestination = 1 << 20

// misbehaviour is what a destination does, and its client beside it.
type misbehaviour struct {
	name        string
	destination func(c *net.TCPConn)
	client      func(c net.Conn)
	mayRefuse   bool // it may be gone before its client is told of it
}

func forever(c net.Conn, block []byte) {
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

var misbehaviours = []misbehaviour{
	{name: "never reads", destination: func(c *net.TCPConn) { time.Sleep(*duration / 4) }, client: func(c net.Conn) { forever(c, make([]byte, 64<<10)) }},
	{name: "sends a byte at a time", destination: func(c *net.TCPConn) { _ = c.SetNoDelay(true); forever(c, []byte{1}) }, client: func(c net.Conn) { time.Sleep(*duration / 4) }},
	{name: "never ends", destination: func(c *net.TCPConn) { forever(c, make([]byte, 64<<10)) }, client: func(c net.Conn) { time.Sleep(*duration / 4) }},
	{name: "resets after a burst", mayRefuse: true, destination: func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, 256<<10))
		_ = c.SetLinger(0)
	}, client: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
}

// proxied connects by a sidecar.
func proxied(kind, at, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if kind == "socks5" {
		client, err := proxy.SOCKS5("tcp", at, nil, &net.Dialer{})
		if err != nil {
			return nil, err
		}
		return client.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	return connect.Handshake(ctx, tunnel.Wrap(c), connect.Request{Address: address})
}

// TestHostileDestinations: each costs its own connection and at most
// maxDestination in each process; a connection beside them goes on.
func TestHostileDestinations(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	must(s.StartAgent(srv))(t)
	sidecars := map[string]*suite.Sidecar{"socks5": must(s.StartSOCKS5(srv))(t), "connect": must(s.StartHTTPS(srv))(t)}
	target := testutil.Echo(t)
	const destinations = 32
	for kind, sidecar := range sidecars {
		for _, m := range misbehaviours {
			t.Run(kind+" "+m.name, func(t *testing.T) {
				bystander := must(proxied(kind, sidecar.Address(), target))(t)
				defer bystander.Close()
				before := owned(t, s)
				ctx, cancel := context.WithCancel(context.Background())
				var work sync.WaitGroup
				defer func() { cancel(); work.Wait() }()
				at := testutil.Serve(t, m.destination)
				for range destinations {
					c, err := proxied(kind, sidecar.Address(), at)
					if err != nil && m.mayRefuse {
						continue
					}
					testutil.Requires(t, err == nil, "%v", err)
					context.AfterFunc(ctx, func() { c.Close() })
					work.Go(func() { defer c.Close(); m.client(c) })
				}
				for end := time.Now().Add(*duration / 5); time.Now().Before(end); {
					err := roundTrip(bystander)
					testutil.Requires(t, err == nil, "a connection beside them: %v", err)
					for i, now := range owned(t, s) {
						if grown := now - before[i]; grown > destinations*maxDestination {
							t.Fatalf("%s holds %.1f MiB more for %d destinations", s.Processes()[i].Name, mib(grown), destinations)
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
				for i, now := range owned(t, s) {
					t.Logf("%s: %+.2f MiB for each destination", s.Processes()[i].Name, mib(now-before[i])/destinations)
				}
			})
		}
	}
}

// owned is what each process of s has of its own, in the order of their start.
func owned(t *testing.T, s *suite.Suite) (out []int64) {
	t.Helper()
	for _, p := range s.Processes() {
		out = append(out, must(p.Memory())(t).Own)
	}
	return out
}
