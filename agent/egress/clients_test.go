package egress

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// One client alone may have nearly all descriptors for destinations. Others then find
// some, each its part where all want more, and what ends is there again.
func TestClientsShareDescriptors(t *testing.T) {
	c := newClients(90)
	hog, other, elsewhere := tunnel.Origin{Server: "a", Client: 1}, tunnel.Origin{Server: "a", Client: 2}, tunnel.Origin{Server: "b", Client: 1}
	ends := map[tunnel.Origin][]*tunnel.Flow{}
	opens := func(of tunnel.Origin) error {
		f := tunnel.NewFlow("tcp", "a:1")
		f.Origin = of
		err := c.enter(f)
		if err == nil {
			ends[of] = append(ends[of], f)
		}
		return err
	}
	fill := func(of tunnel.Origin) int {
		for opens(of) == nil {
		}
		return len(ends[of])
	}
	testutil.Equal(t, fill(hog), 80, "connections that a client alone has, of 90")
	wantFailure(t, opens(hog), tunnel.FailExhausted)
	if text := opens(hog).Error(); !strings.Contains(text, "share is used up") || !strings.Contains(text, "80 connections") {
		t.Errorf("it hears %q", text)
	}
	n, m := fill(other), fill(elsewhere)
	testutil.Holds(t, n != 0 && m != 0, "others have %d and %d beside it", n, m)
	for of, flows := range ends {
		for _, f := range flows {
			end(t, f)
		}
		ends[of] = nil
	}
	testutil.Holds(t, len(c.known) == 0 && c.pool.Used() == 0,
		"%d clients and %d connections are left", len(c.known), c.pool.Used())
}

// end ends a flow, as a Forwarder does whose dial has failed.
func end(t *testing.T, f *tunnel.Flow) {
	fails := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, net.ErrClosed })
	_ = forward(t, fails, f)
}

func forward(t *testing.T, d tunnel.Dialer, f *tunnel.Flow) error {
	return tunnel.Forward(t.Context(), &tunnel.Forwarder{Dialer: d}, f, func(_ tunnel.Conn, err error) (tunnel.Conn, error) { return nil, err })
}

// A dial that fails takes nothing of its client's share. What was handed over takes its part.
func TestFailedDialsTakeNoDescriptors(t *testing.T) {
	d, address := New(Options{Descriptors: 64}), testutil.Refusing(t)
	for range 100 {
		wantFailure(t, forward(t, d, tunnel.NewFlow("tcp", address)), tunnel.FailRefused)
	}
	var err error
	for n := 0; n < 64 && err == nil; n++ {
		err = d.Adopt(tunnel.NewFlow("tcp", address), net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	}
	wantFailure(t, err, tunnel.FailExhausted)
}
