package uplink

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

func newTestConnector(t *testing.T, n *names) *connector {
	t.Helper()
	opt := testutil.Must(Options{Address: "konnectivity:8090", ServerName: serverName, TLS: certs(t), Lookup: n.lookup, DialTCP: n.dial}.withDefaults())(t)
	return newConnector(opt, newHealth(t.Context(), opt), link.NewBudget(0), nil)
}

// A connector makes links where the server has them, and else connections, which are
// the caller's. All that it keeps is what it heard.
func TestConnectorSessions(t *testing.T) {
	linked, old := newFake(t).Start(t), newFake(t).Old().Start(t)
	toLinked, toOld := netip.MustParseAddrPort("192.0.2.1:8090"), netip.MustParseAddrPort("192.0.2.2:8090")
	n := at("192.0.2.1", linked.Addr(), "192.0.2.2", old.Addr())
	c := newTestConnector(t, n)
	first := testutil.Opened(c.sessionAt(t.Context(), toLinked))(t)
	second := testutil.Opened(c.sessionAt(t.Context(), toLinked))(t)
	if first.Key() == second.Key() || first.(*linkSession).addr != toLinked {
		t.Errorf("links %q and %q, the first to %v", first.Key(), second.Key(), first.(*linkSession).addr)
	}
	third := testutil.Opened(c.sessionAt(t.Context(), toOld))(t)
	if s, ok := third.(*connectSession); !ok || s.addr != toOld || s.take() != nil {
		t.Errorf("to a server without links it makes %T", third)
	}
	testutil.ErrorIs(t, testutil.Err(c.linkAt(t.Context(), toOld)), errNoLink, "a link to a server without links")

	n.set("192.0.2.2", old.Addr())
	c = newTestConnector(t, n)
	addr, s, err := c.rush(t.Context())
	testutil.NoError(t, err)
	defer s.Close()
	testutil.Equal(t, addr, toOld, "the address")
	testutil.Equal(t, s.(*connectSession).spare != nil, true, "there is a spare connection")
	far := testutil.Opened(s.Dial(t.Context(), tunnel.NewFlow("tcp", testutil.Echo(t))))(t)
	says(t, far, "by CONNECT")
}

// A server's id is in lines of the log and on the status page.
func TestLongIDsOfServersAreRefused(t *testing.T) {
	for more, ok := range []bool{true, false} {
		server := newFake(t)
		server.ID = strings.Repeat("i", link.MaxID+more)
		_, s, err := newTestConnector(t, at("192.0.2.1", server.Start(t).Addr())).rush(t.Context())
		if err == nil {
			_ = s.Close()
		}
		testutil.Holds(t, (err == nil) == ok, "%d bytes too many: %v", more, err)
	}
}

// Of a name's many addresses most may lead nowhere: all of one family, or those of servers
// that have just gone.
func TestEveryAddressOfTheServerIsTried(t *testing.T) {
	up := newFake(t).Start(t)
	pairs := []string{"192.0.2.1", up.Addr()}
	for i := 2; i <= maxAddresses; i++ {
		pairs = append(pairs, fmt.Sprint("192.0.2.", i), "nowhere")
	}
	c := newTestConnector(t, at(pairs...))
	for range 8 { // four addresses at random have the good one among them in a quarter of cases
		h := testutil.Must(c.connectAny(t.Context()))(t)
		_ = h.Close()
	}
}

// A server that has moved, and whose old address swallows packets, is looked up by the next request.
func TestAServerThatMovedIsLookedUp(t *testing.T) {
	n := at("192.0.2.1", "nowhere")
	c := newTestConnector(t, n)
	testutil.Must(c.servers.resolve(t.Context()))(t)
	n.set("192.0.2.2", newFake(t).Start(t).Addr())
	connect := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		h, err := c.connectAny(ctx)
		if err == nil {
			_ = h.Close()
		}
		return err
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	testutil.ErrorIs(t, testutil.Err(c.connectAny(gone)), context.Canceled, "a request that is given up")
	testutil.Holds(t, time.Now().Before(c.servers.until), "its addresses are looked up anew")
	testutil.ErrorIs(t, connect(time.Millisecond), context.DeadlineExceeded, "the next request")
	testutil.NoError(t, connect(time.Minute))
}

// Slow servers are not made slower by many handshakes at once, and a few that are frozen do not
// keep the others from being tried.
func TestSlowServersGetFewHandshakes(t *testing.T) {
	certs(t) // for all tests, so not in fake time
	synctest.Test(t, func(t *testing.T) {
		var pairs []string
		for i := range maxAddresses {
			pairs = append(pairs, fmt.Sprint("192.0.2.", i+1), "")
		}
		c := newTestConnector(t, at(pairs...))
		var connected, hellos atomic.Int32
		c.opt.DialTCP = func(context.Context, *net.Dialer, string) (net.Conn, error) {
			connected.Add(1)
			near, far := net.Pipe()
			go func() { // it takes a ClientHello, and never answers
				defer far.Close()
				buf := make([]byte, 4<<10)
				if _, err := far.Read(buf); err != nil {
					return
				}
				hellos.Add(1)
				for {
					if _, err := far.Read(buf); err != nil {
						return
					}
				}
			}()
			return near, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), c.opt.ConnectTimeout-time.Millisecond) // before further turns
		defer cancel()
		time.AfterFunc(c.opt.ConnectTimeout/2-time.Millisecond, func() {
			testutil.Equal(t, hellos.Load(), race.MaxTries, "handshakes in the first half of the time")
		})
		testutil.Equal(t, tunnel.FailureOf(testutil.Err(c.connectAny(ctx))), tunnel.FailTimeout, "how it ended")
		testutil.Equal(t, connected.Load(), maxAddresses, "connections")
		testutil.Equal(t, hellos.Load(), 2*race.MaxTries, "handshakes")
	})
}
