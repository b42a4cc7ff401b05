package legacy

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// A stream has no more connections than it may have, at the server and at the agent.
func TestConnectionsOfAStreamAreBounded(t *testing.T) {
	r := newRig(t, Limits{maxConns: 1})
	p, s := r.agent(false)
	address := testutil.Echo(t)
	c := dial(t, p, address)
	for _, most := range []int{1, 2} { // of the server
		p.mux.limits.maxConns = most
		err := testutil.Err(p.Dial(t.Context(), tunnel.NewFlow("tcp", address)))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailExhausted, "the second dial, of %d: %v", most, err)
		testutil.Equal(t, r.metrics.packets[ToAgent][client.PacketType_DIAL_REQ+1].Load(), int64(2*most), "dials that are asked for, which both sides count")
	}
	_ = c.Close()
	r.idle(p, s)
	dial(t, p, address)
}

// The number of a dial that its client has given up may come again at once, also while
// that dial has yet to end.
func TestNumberOfCancelledDialIsReusable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, release, dials := newWire(Limits{}), make(chan struct{}), 0
		dialer := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			dials++
			<-release
			return nil, net.ErrClosed
		})
		s := newAgentSession(t.Context(), AgentConfig{Forwarder: &tunnel.Forwarder{Dialer: dialer}})
		s.mux = w.mux
		for want := 1; want <= 2; want++ {
			s.dial(dialRequest(7, "tcp", "a:1").GetDialRequest())
			synctest.Wait()
			testutil.Equal(t, dials, want, "dials")
			s.dialClosed(7)
		}
		close(release)
		s.running.Wait()
		w.end()
		testutil.Equal(t, s.Streams(), 0, "streams")
		testutil.Equal(t, len(s.dials), 0, "dials that are left")
	})
}
