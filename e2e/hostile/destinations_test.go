package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
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

// proxied connects by a sidecar: by a minimal client, so that little of what is
// measured is the client's.
func proxied(kind, at, address string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", at, time.Minute)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if kind == "socks5" {
		err = socks5(c, netip.MustParseAddrPort(address))
	} else {
		err = connect(c, address)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

func socks5(c net.Conn, to netip.AddrPort) error {
	request := append([]byte{5, 1, 0, 5, 1, 0, 1}, to.Addr().AsSlice()...)
	if _, err := c.Write(append(request, byte(to.Port()>>8), byte(to.Port()))); err != nil {
		return err
	}
	reply := make([]byte, 2+10)
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	if reply[3] != 0 {
		return fmt.Errorf("SOCKS reply %d", reply[3])
	}
	return nil
}

func connect(c net.Conn, address string) error {
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); {
		if _, err := c.Read(b); err != nil {
			return err
		}
		head.Write(b)
	}
	if !strings.HasPrefix(head.String(), "HTTP/1.1 200 ") {
		return errors.New(head.String())
	}
	return nil
}

// TestHostileDestinations: each costs its own connection and at most
// maxDestination in each process; a connection beside them goes on.
func TestHostileDestinations(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	must(s.StartAgent(srv))(t)
	sidecars := map[string]*suite.Sidecar{"socks5": must(s.StartSOCKS5(srv))(t), "connect": must(s.StartHTTPS(srv))(t)}
	target := testutil.Serve(t, echo)
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
					if err != nil {
						t.Fatal(err)
					}
					context.AfterFunc(ctx, func() { c.Close() })
					work.Go(func() { defer c.Close(); m.client(c) })
				}
				for end := time.Now().Add(*duration / 5); time.Now().Before(end); {
					if err := roundTrip(bystander); err != nil {
						t.Fatalf("a connection beside them: %v", err)
					}
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
