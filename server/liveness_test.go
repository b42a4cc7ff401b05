package server

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// between returns the address of a relay to another address, which begins each connection with a
// header. Once freeze is called, both ends stay open and nothing passes, as when a host loses its
// network.
func between(t *testing.T, to, header string) (at string, freeze func()) {
	frozen, over := make(chan struct{}), make(chan struct{})
	pass := func(dst, src net.Conn) {
		defer dst.Close()
		for buf := make([]byte, 16<<10); ; {
			n, err := src.Read(buf)
			if tunnel.Closed(frozen) {
				_, _ = io.Copy(io.Discard, src)
				<-over // not even that src has ended
				return
			}
			if _, failed := dst.Write(buf[:n]); failed != nil || err != nil {
				return
			}
		}
	}
	at = testutil.Serve(t, func(near *net.TCPConn) {
		far, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		_, _ = io.WriteString(far, header)
		var back sync.WaitGroup
		defer back.Wait()
		back.Go(func() { pass(near, far) })
		pass(far, near)
	})
	t.Cleanup(func() { close(over) })
	return at, func() { close(frozen) }
}

// TestSilentAgentIsNoticed: an agent that is gone without a word is out, by the keepalive,
// before the caller gives up, and what waits for it fails then.
func TestSilentAgentIsNoticed(t *testing.T) {
	t.Parallel() // it waits
	testutil.EachOf(t, agentKinds, func(t *testing.T, kind string) {
		t.Parallel()
		testSilentAgentIsNoticed(t, kind)
	})
}

func testSilentAgentIsNoticed(t *testing.T, kind string) {
	r := startServer(t, func(o *Options) { o.Keepalive, o.DialTimeout = time.Second, time.Hour })
	at, freeze := between(t, r.agentAt, "")
	r.agentAt = at
	asked := make(chan struct{})
	r.agent(kind, agentHello{id: "a"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	failed := testutil.Later(func() error { return testutil.Err(r.dial("connect-uds", "x:1")) })
	<-asked
	freeze()
	if err := <-failed; !isStatus(err, 503, "agent went away") { // the caller gives up after a minute
		t.Errorf("the caller heard %v", err)
	}
	// The caller may hear before the registry does.
	r.eventually("the agent forgotten", func() bool { return len(r.own.agents.Agents()) == 0 })
}

// Agents of both protocols are shown by the address that the load balancer
// names, and serve as ever.
func TestAgentsBehindABalancer(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, kind string) {
		r := startServer(t, func(o *Options) {
			networks := testutil.Must(admission.ParseNetworks([]string{"127.0.0.0/8", "::1"}))(t)
			o.Agents[0].Proxies = networks
		})
		const remote = "198.51.100.7:4711"
		r.agentAt, _ = between(t, r.agentAt, "PROXY TCP4 198.51.100.7 203.0.113.1 4711 8091\r\n")
		r.agent(kind, agentHello{id: "a"}, echoing)
		peers := ask[admin.Page[admin.Peer]](r, "peers").Items
		testutil.Holds(t, len(peers) == 1 && peers[0].Remote == remote, "the status page has %+v, want %s", peers, remote)
		r.roundTrip(r.mustDial("connect-tls", "echo:1"), 100_000)
	})
}
