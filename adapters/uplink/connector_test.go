package uplink

import (
	"errors"
	"net/netip"
	"testing"

	"konnectivity/adapters/internal/fakeserver"
	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func newTestConnector(t *testing.T, n *names, p ClientTLS) *connector {
	t.Helper()
	opt, err := Options{Address: "konnectivity:8090", ServerName: fakeserver.ServerName, TLS: p, lookup: n.lookup, dialTCP: n.dial}.withDefaults()
	must(t, err)
	return newConnector(opt, newHealth(t.Context(), opt), link.NewBudget(0), nil)
}

// A connector makes links where the server has them, and else connections, which are
// the caller's. All that it keeps is what it heard.
func TestConnectorMakesWhatTheServerSpeaks(t *testing.T) {
	p := fakeserver.NewPKI(t)
	linked, old := fakeserver.New(p).Start(t), fakeserver.New(p).Old().Start(t)
	toLinked, toOld := netip.MustParseAddrPort("192.0.2.1:8090"), netip.MustParseAddrPort("192.0.2.2:8090")
	n := at("192.0.2.1", linked.Addr(), "192.0.2.2", old.Addr())
	c := newTestConnector(t, n, p)
	first, err := c.at(t.Context(), toLinked)
	must(t, err)
	defer first.Close()
	second, err := c.at(t.Context(), toLinked)
	must(t, err)
	defer second.Close()
	if first.id == second.id || first.addr != toLinked {
		t.Errorf("links %q and %q, the first to %v", first.id, second.id, first.addr)
	}
	var reached *peers.Reached
	if _, err := c.at(t.Context(), toOld); !errors.As(err, &reached) {
		t.Errorf("of a server without links it says %v", err)
	}

	n.set("192.0.2.2", old.Addr())
	c = newTestConnector(t, n, p)
	h, l, err := c.whichever(t.Context())
	if err != nil || l != nil || h.addr != toOld {
		t.Fatalf("%v, %v, %v", h.addr, l, err)
	}
	far, err := c.request(t.Context(), h, tunnel.NewFlow("tcp", echo(t)))
	must(t, err)
	defer far.Close()
	says(t, far, "by CONNECT")
}
