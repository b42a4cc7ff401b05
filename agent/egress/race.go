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
func (d *Dialer) race(ctx context.Context, hold held, addrs []netip.AddrPort) (tunnel.Conn, error) {
	conn, _, err := race.All(ctx, addrs, func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return d.connect(ctx, hold, to)
	})
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(conn), nil
}

// connect dials one address. The policy is asked again with what the kernel is
// about to be given, so no layer in between can swap the address.
func (d *Dialer) connect(ctx context.Context, hold held, to netip.AddrPort) (net.Conn, error) {
	dialer := d.dialer
	dialer.ControlContext = func(ctx context.Context, network, address string, socket syscall.RawConn) error {
		if err := d.spare.control(ctx, network, address, socket); err != nil {
			return err
		}
		return hold.connected(address)
	}
	conn, err := dialer.DialContext(ctx, hold.flow.Network, to.String())
	if to.Addr().Is4() && tunnel.IsErrno(err, syscall.EADDRNOTAVAIL) { // over IPv6 it may be for want of an address
		return nil, &tunnel.DialError{Failure: tunnel.FailExhausted, Reason: "the agent has no port left for one more connection to this destination", Err: err}
	}
	return conn, err
}
