package adapters

import (
	"context"
	"net/netip"
	"time"

	"konnectivity/adapters/chain"
	"konnectivity/adapters/race"
	"konnectivity/adapters/resolve"
	"konnectivity/tunnel"
)

// path is the way out of one front: a tunnel.Dialer made of the parts that all
// fronts share.
type path struct {
	*parts
	resolver resolve.Resolver // nil: names are left to the agent
	fallback bool             // resolver can say "direct"
	bypass   *Bypass
	customer *chain.Way // nil: none
	noProxy  *chain.NoProxy
	via      func(address string) Route // names the route through the tunnel; nil: RouteTunnel
}

// parts are what fronts share.
type parts struct {
	server  tunnel.Dialer
	direct  *direct
	guest   *resolve.Guest
	health  *resolve.Health
	metrics *metrics
}

// Dial implements tunnel.Dialer for a front.
func (p *path) Dial(ctx context.Context, network, address string) (tunnel.Conn, error) {
	if tunnel.ID(ctx) == "" {
		ctx = tunnel.WithID(ctx, tunnel.NewID())
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
		defer cancel()
	}
	trace := traceOf(ctx)
	ctx = WithTrace(ctx, trace)
	start := time.Now()
	c, err := p.dial(ctx, network, address)
	p.metrics.dialed(trace.Route, time.Since(start), err)
	if err != nil {
		return nil, tunnel.AsDialError(address, err)
	}
	return c, nil
}

// dial picks the route.
func (p *path) dial(ctx context.Context, network, address string) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(address)
	if err != nil {
		return nil, err
	}
	trace := traceOf(ctx)
	switch {
	case p.bypass.Matches(host):
		trace.Route = RouteDirect
		tunnel.NoteHop(ctx, "direct")
		return p.direct.Dial(ctx, network, address)
	case p.customer != nil && !p.noProxy.Exempts(host, port):
		c, err := p.customer.Dial(ctx, network, address)
		trace.Route = RouteCustomer
		return c, err
	default:
		return p.tunnel(ctx, network, address)
	}
}

// tunnel goes through the tunnel, or direct while that is deemed down. It is
// also how a customer's proxy is reached, so it never asks for one.
func (p *path) tunnel(ctx context.Context, network, address string) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(address)
	if err != nil {
		return nil, err
	}
	trace := traceOf(ctx)
	trace.Route = RouteTunnel
	if p.via != nil {
		trace.Route = p.via(address)
	}
	ip, parseErr := netip.ParseAddr(host)
	literal := parseErr == nil
	if !literal && p.resolver == nil {
		return p.server.Dial(ctx, network, address)
	}
	answer := resolve.Answer{Addrs: []netip.Addr{ip}, Source: resolve.FromLiteral, Direct: p.fallback && p.health.Down()}
	if !literal {
		if answer, err = p.resolve(ctx, host); err != nil {
			return nil, err
		}
	}
	c, err := p.reach(ctx, network, address, port, answer)
	if err == nil || !p.doubtful(ctx, answer, err) {
		return c, err
	}
	// The name was known from before and the tunnel does not work: ask anew,
	// which comes to a verdict on the tunnel.
	p.guest.Forget(host)
	if answer, verdictErr := p.resolve(ctx, host); verdictErr == nil && answer.Direct {
		return p.reach(ctx, network, address, port, answer)
	}
	return nil, err
}

// doubtful says that err casts doubt on the tunnel as a whole.
func (p *path) doubtful(ctx context.Context, answer resolve.Answer, err error) bool {
	if !p.fallback || answer.Source != resolve.FromGuest || answer.Direct || ctx.Err() != nil {
		return false
	}
	switch tunnel.FailureOf(err) {
	case tunnel.FailUnavailable, tunnel.FailNoAgent, tunnel.FailAgentLost:
		return true
	default:
		return false
	}
}

func (p *path) resolve(ctx context.Context, host string) (resolve.Answer, error) {
	start := time.Now()
	answer, err := p.resolver.Resolve(ctx, host)
	p.metrics.resolved(answer.Source, time.Since(start), err)
	return answer, err
}

// reach tries the addresses of an answer.
func (p *path) reach(ctx context.Context, network, address string, port uint16, answer resolve.Answer) (tunnel.Conn, error) {
	trace := traceOf(ctx)
	trace.Resolved = netip.AddrPortFrom(answer.Addrs[0], port).String()
	if answer.Direct {
		trace.Route = RouteFallback
		tunnel.NoteHop(ctx, "direct")
		return p.direct.dial(ctx, network, address, answer.Addrs)
	}
	dial := func(ctx context.Context, ip netip.Addr) (tunnel.Conn, error) {
		return p.server.Dial(ctx, network, netip.AddrPortFrom(ip, port).String())
	}
	c, ip, err := race.Dial(ctx, answer.Addrs, dial, func(c tunnel.Conn) { _ = c.Close() })
	if err == nil {
		trace.Resolved = netip.AddrPortFrom(ip, port).String()
	}
	return c, err
}
