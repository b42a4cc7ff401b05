package resume_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"konnectivity/tunnel"
)

// grab hands the test what an agent serves.
type grab chan tunnel.Conn

// Forward implements tunnel.Handler.
func (g grab) Forward(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer) error {
	far, other := net.Pipe() // only for its addresses
	defer far.Close()
	defer other.Close()
	near, err := answer(tunnel.Wrap(far), nil)
	if err == nil {
		g <- near
	}
	return err
}

// A Conn keeps what net.Conn promises, whichever end it is, and also while its
// links are cut.
func TestConnIsANetConn(t *testing.T) {
	for name, pause := range map[string]time.Duration{"in peace": 0, "links are cut": 20 * time.Millisecond} {
		for _, reverse := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", opener", true: ", acceptor"}[reverse], func(t *testing.T) {
				accepted := make(grab, 1)
				w := &world{t: t, serve: accepted}
				w.begin(2, time.Minute)
				dialer := w.opener.Dialer(w)
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					c, err := dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
					if err != nil {
						return nil, nil, nil, err
					}
					a, b := net.Conn(c), net.Conn(<-accepted)
					if reverse {
						a, b = b, a
					}
					stop := make(chan struct{})
					var messing sync.WaitGroup
					if pause > 0 {
						messing.Go(func() { w.mess(stop, pause) })
					}
					return a, b, func() { close(stop); messing.Wait(); a.Close(); b.Close() }, nil
				})
			})
		}
	}
}
