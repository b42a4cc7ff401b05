package egress

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

// race tries addresses in order and returns the first connection. It returns
// after every attempt has ended, so nothing is left behind.
func (d *Dialer) race(ctx context.Context, network, host string, addrs []netip.AddrPort) (tunnel.Conn, error) {
	conn, _, err := race.All(ctx, addrs, func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return d.connect(ctx, network, host, to)
	}, func(late net.Conn) { _ = late.Close() })
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(conn), nil
}

// connect dials one address. The policy is asked again with what the kernel is
// about to be given, so no layer in between can swap the address.
func (d *Dialer) connect(ctx context.Context, network, host string, to netip.AddrPort) (net.Conn, error) {
	dialer := d.dialer
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		final, err := netip.ParseAddrPort(address)
		if err != nil {
			return &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
		}
		return d.opts.Policy.AllowResolved(named(host), final)
	}
	return dialer.DialContext(ctx, network, to.String())
}

// named is host unless it is an address, about which rules for names say nothing.
func named(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}
