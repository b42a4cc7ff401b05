package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

// maxAddresses bounds how many addresses of one name are tried. At one every
// stagger the last of them starts while a dial of the default length is young.
const maxAddresses = 16

// resolve returns the addresses to try, in order, without those the policy
// denies. Where it denies all, its error is returned.
func (d *Dialer) resolve(ctx context.Context, hold held, family string) ([]netip.AddrPort, error) {
	if hold.addr.IsValid() {
		to := netip.AddrPortFrom(hold.addr.Unmap(), hold.port)
		if family == "ip4" && !to.Addr().Is4() || family == "ip6" && to.Addr().Is4() {
			return nil, &tunnel.DialError{Failure: tunnel.FailBadAddress, Reason: "the address is of the other IP version"}
		}
		return []netip.AddrPort{to}, hold.resolved(to)
	}
	found, err := d.lookup(ctx, family, hold.host)
	if err != nil {
		return nil, err
	}
	var addrs []netip.AddrPort
	var denied error
	for _, addr := range race.Alternate(found) {
		to := netip.AddrPortFrom(addr, hold.port)
		if err := hold.resolved(to); err != nil {
			denied = err
			continue
		}
		if addrs = append(addrs, to); len(addrs) == maxAddresses {
			break
		}
	}
	if len(addrs) > 0 {
		return addrs, nil
	}
	if denied != nil {
		return nil, denied
	}
	return nil, &tunnel.DialError{Failure: tunnel.FailNoSuchHost, Reason: "the name has no address"}
}

// lookupShare is the part of a dial's time that looking its name up may take. A
// DNS that has not answered by then leaves no time to connect, and must not be
// taken for a destination that does not answer. In tenths.
const lookupShare = 7

// lookup resolves host. If the DNS does not answer, or cannot tell, the error
// says that it was the agent's DNS.
func (d *Dialer) lookup(ctx context.Context, family, host string) ([]netip.Addr, error) {
	bounded := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, time.Until(end)*lookupShare/10)
		defer cancel()
	}
	refused := d.spare.refused.Load()
	found, err := d.opts.resolver.LookupNetIP(bounded, family, host)
	var dns *net.DNSError
	switch {
	case err == nil, ctx.Err() != nil:
		return found, err
	case bounded.Err() != nil, errors.As(err, &dns) && dns.IsTimeout:
		return nil, &tunnel.DialError{Failure: tunnel.FailResolve, Reason: "name lookup failed: the agent's DNS does not answer", Err: err}
	case errors.As(err, &dns) && !dns.IsNotFound && d.spare.refused.Load() != refused:
		// Of what kept it from asking, a DNSError keeps the text alone. Should the refused
		// socket have been another dial's, this one is no worse off by asking elsewhere.
		return nil, &tunnel.DialError{Failure: tunnel.FailExhausted, Err: err}
	case errors.As(err, &dns) && !dns.IsNotFound:
		return nil, &tunnel.DialError{Failure: tunnel.FailResolve, Reason: "name lookup failed: the agent's DNS could not answer", Err: err}
	default:
		return nil, err
	}
}
