package adapters

import (
	"context"
	"net/netip"
	"time"

	"konnectivity/adapters/resolve"
	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

// path is the way out of one front: a tunnel.Dialer made of the parts that all
// fronts share.
type path struct {
	*parts
	resolver resolve.Resolver // nil: names are left to the agent
	fallback bool             // resolver can say "direct"
	bypass   *bypass
	customer *proxyDialer // nil: none
	noProxy  *exemptions
	self     func(address string) bool         // see Options; nil: none does
	via      func(address string) tunnel.Route // names the route through the tunnel; nil: tunnel.RouteTunnel
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
func (p *path) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if p.self != nil && p.self(f.Address) {
		return nil, &tunnel.DialError{Failure: tunnel.FailDenied, Address: f.Address, Reason: "the destination is this proxy itself"}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
		defer cancel()
	}
	start := time.Now()
	c, err := p.dial(ctx, f)
	p.metrics.dialed(f, time.Since(start), err)
	if err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return c, nil
}

// dial picks the route.
func (p *path) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	switch {
	case p.bypass.matches(host):
		f.Route, f.Hop = tunnel.RouteDirect, tunnel.Direct
		return p.direct.Dial(ctx, f)
	case p.customer != nil && !p.noProxy.exempts(host, port):
		c, err := p.customer.Dial(ctx, f)
		f.Route = tunnel.RouteCustomer
		return c, err
	default:
		return p.tunnel(ctx, f)
	}
}

// tunnel goes through the tunnel, or direct while that is deemed down. It is
// also how a customer's proxy is reached, so it never asks for one.
func (p *path) tunnel(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	f.Route = tunnel.RouteTunnel
	if p.via != nil {
		f.Route = p.via(f.Address)
	}
	ip, parseErr := netip.ParseAddr(host)
	literal := parseErr == nil
	if !literal && p.resolver == nil {
		return p.server.Dial(ctx, f)
	}
	answer := resolve.Answer{Addrs: []netip.Addr{ip}, Source: resolve.FromLiteral, Direct: p.fallback && p.health.Down()}
	if !literal {
		if answer, err = p.resolve(ctx, host); err != nil {
			return nil, err
		}
	}
	c, err := p.reach(ctx, f, port, answer)
	if err == nil || !p.doubtful(ctx, answer, err) {
		return c, err
	}
	// The name was known from before and the tunnel does not work: ask anew,
	// which comes to a verdict on the tunnel.
	p.guest.Forget(host)
	if answer, verdictErr := p.resolve(ctx, host); verdictErr == nil && answer.Direct {
		return p.reach(ctx, f, port, answer)
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
func (p *path) reach(ctx context.Context, f *tunnel.Flow, port uint16, answer resolve.Answer) (tunnel.Conn, error) {
	if answer.Direct {
		f.Route, f.Hop = tunnel.RouteFallback, tunnel.Direct
		f.Resolved = netip.AddrPortFrom(answer.Addrs[0], port).String()
		return p.direct.dial(ctx, f, answer.Addrs)
	}
	tries := make([]*tunnel.Flow, min(len(answer.Addrs), race.MaxTries))
	for i := range tries {
		tries[i] = f.To(netip.AddrPortFrom(answer.Addrs[i], port).String())
	}
	c, try, err := race.Dial(ctx, tries, p.server.Dial)
	f.TakeResult(try)
	f.Resolved = try.Address // also of a try that got nowhere
	return c, err
}
