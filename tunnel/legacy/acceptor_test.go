package legacy

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

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
