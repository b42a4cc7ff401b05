package legacy

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// Between our own peers a connection is all that x/net asks of one.
func TestConnConforms(t *testing.T) {
	var next atomic.Int64
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		// The suite writes without reading until a deadline passes, which is
		// not what these bounds are for.
		r := newRig(t, Limits{Budget: NewBudget(8 << 30), stallTimeout: time.Hour})
		p, s := r.agent(false)
		id := next.Add(1)
		opened := newOpener(p.mux, id, id, true, "far:1")
		served := newServer(s.mux, id, true, "far:1", func(error) {})
		_, _ = p.mux.add(id, opened)
		_, _ = s.mux.add(id, served)
		return opened, served, func() { opened.Close(); served.Close() }, nil
	})
}
