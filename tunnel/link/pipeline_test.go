package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// pipeline is client TCP → link → link → target TCP, every join a Relay: what
// a sidecar, a server and an agent make of one connection. Its links are over TLS.
type pipeline struct {
	t      *testing.T
	budget *link.Budget
	links  []*link.Session // the ends of the agent's link, and of the client's
	wires  []net.Conn      // under the agent's end, and the client's
	front  net.Listener
	target net.Listener
	relays sync.WaitGroup
}

func newPipeline(t *testing.T) *pipeline {
	noLeaks(t)
	p := &pipeline{t: t, budget: link.NewBudget(256 << 20), front: testutil.Listen(t), target: testutil.Listen(t)}
	_, toAgent := p.link(link.RoleAgent, tunnel.DialerFunc(dialTCP))
	client, _ := p.link(link.RoleClient, toAgent)
	p.relays.Go(func() {
		for {
			conn, err := p.front.Accept()
			if err != nil {
				return
			}
			p.relays.Go(func() { p.carry(tunnel.Wrap(conn), client) })
		}
	})
	return p
}

// link links a peer to the server; what either opens is dialed by dialer.
func (p *pipeline) link(role link.Role, dialer tunnel.Dialer) (peer, server *link.Session) {
	near, far := tlsPair(p.t) // buffered, so that links deliver to each other
	serve := &tunnel.Forwarder{Dialer: dialer, Bounds: tunnel.Bounds{Linger: 5 * time.Second}}
	peer, server = sessions(p.t, near, far,
		link.Config{Hello: link.Hello{Role: role}, Budget: p.budget, Forwarder: serve},
		link.Config{Hello: link.Hello{Role: link.RoleServer}, Budget: p.budget, Forwarder: serve})
	p.links, p.wires = append(p.links, peer, server), append(p.wires, near.(*tls.Conn).NetConn())
	return peer, server
}

func dialTCP(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, f.Network, f.Address)
	if err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return tunnel.Wrap(conn), nil
}

// carry is what a sidecar does.
func (p *pipeline) carry(client tunnel.Conn, by tunnel.Dialer) {
	serve := &tunnel.Forwarder{Dialer: by, Bounds: tunnel.Bounds{Linger: patience}}
	req := &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: p.target.Addr().String()}}
	_ = serve.Forward(context.Background(), req, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		if err != nil {
			_ = client.Reset(err)
		}
		return client, err
	})
}

// pair is one connection's outer ends.
func (p *pipeline) pair() (client, target *net.TCPConn) {
	p.t.Helper()
	a := testutil.Must(net.Dial("tcp", p.front.Addr().String()))(p.t)
	b := testutil.Must(p.target.Accept())(p.t)
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(patience))
		p.t.Cleanup(func() { _ = c.Close() })
	}
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// end expects every relay to have ended by itself before the links are closed, and
// nothing to be left of any stream.
func (p *pipeline) end() {
	p.t.Helper()
	_ = p.front.Close()
	within(p.t, patience, "a relay", p.relays.Wait)
	for _, ses := range p.links {
		testutil.Eventually(p.t, "no streams", func() bool { return ses.Streams() == 0 })
		_ = ses.Close()
	}
	testutil.Eventually(p.t, "no unread byte and nothing of the budget is left", func() bool {
		return p.budget.Used() == 0 && !slices.ContainsFunc(p.links, func(ses *link.Session) bool { return ses.Stats().Unread != 0 })
	})
}

// bothEnds runs f with the ends in either order.
func bothEnds(t *testing.T, f func(t *testing.T, p *pipeline, near, far *net.TCPConn)) {
	for _, name := range []string{"client", "target"} {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t)
			near, far := p.pair()
			if name == "target" {
				near, far = far, near
			}
			f(t, p, near, far)
			p.end()
		})
	}
}

// A reset arrives, behind bytes that were sent well before it.
func TestPipelineReset(t *testing.T) {
	bothEnds(t, func(t *testing.T, p *pipeline, near, far *net.TCPConn) {
		testutil.Must(near.Write([]byte("last words")))(t)
		var got [10]byte
		testutil.Must(io.ReadFull(far, got[:]))(t)
		_ = near.SetLinger(0)
		_ = near.Close()
		if n, err := far.Read(got[:]); err == nil || err == io.EOF || !isReset(err) {
			t.Errorf("read %d, %v; want a reset", n, err)
		}
	})
}

// When either link dies, both ends of every connection are reset, whatever
// they were doing: bulk, idle, or a reader that stalls.
func TestPipelineLinkDeath(t *testing.T) {
	for victim, name := range []string{"agent's link", "client's link"} {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t)
			var wg sync.WaitGroup
			bulkNear, bulkFar := p.pair()
			for _, c := range []*net.TCPConn{bulkNear, bulkFar} {
				wg.Go(func() { writeOn(c) })
				wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
			}
			stallNear, stallFar := p.pair()
			wg.Go(func() { writeOn(stallNear) })
			idleNear, idleFar := p.pair()
			time.Sleep(30 * time.Millisecond)
			_ = p.wires[victim].Close()
			for _, c := range []*net.TCPConn{idleNear, idleFar} {
				_, err := c.Read(make([]byte, 1))
				testutil.Holds(t, isReset(err), "an idle end sees %v", err)
			}
			_, err := io.Copy(io.Discard, stallFar)
			testutil.Equal(t, isReset(err), true, "the end that stalled sees a reset: %v", err)
			wg.Wait()
			p.end()
		})
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
