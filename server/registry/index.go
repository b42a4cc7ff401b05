package registry

import (
	"net"
	"net/netip"
	"slices"

	"konnectivity/internal/memory"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
)

// index finds groups of connections by what their agents can reach. The
// registry's lock guards it. The zero value is empty, and small: a server of many
// clusters has two for each.
type index struct {
	all     group
	keyed   memory.Map[routes.Key, *group] // those that have members
	lengths routes.Lengths                 // of the prefixes in keyed

	told func(k routes.Key, there bool) // called for each key that is added or removed, but byID; may be nil
}

// byID is a kind that other servers are not told of. Its groups have as many members as
// certificates use the id. No group is of routes.AnyAgent, since there is index.all.
const byID routes.Kind = 0

// broad are the keys of some agent that a strategy can use.
var broad = map[Strategy]routes.Kind{Default: routes.AnyAgent, DefaultRoute: routes.DefaultRoute, DestHost: routes.AnyHost, DestCIDR: routes.AnyPrefix}

// keys are those of an agent.
func (c *conn) keys() []routes.Key {
	ids := c.agent.Identifiers
	keys := []routes.Key{routes.OfText(routes.Agent, c.route), routes.OfText(byID, c.agent.ID)}
	for _, addr := range ids.Addrs {
		keys = append(keys, routes.OfAddr(addr))
	}
	for _, host := range ids.Hosts {
		keys = append(keys, routes.OfText(routes.Host, host))
	}
	for _, prefix := range ids.CIDRs {
		keys = append(keys, routes.OfPrefix(prefix.Addr(), prefix.Bits()))
	}
	if ids.DefaultRoute {
		keys = append(keys, routes.Key{Kind: routes.DefaultRoute})
	}
	if len(ids.Addrs)+len(ids.Hosts) > 0 {
		keys = append(keys, routes.Key{Kind: routes.AnyHost})
	}
	if len(ids.CIDRs) > 0 {
		keys = append(keys, routes.Key{Kind: routes.AnyPrefix})
	}
	return keys
}

// destHostKeys are the keys of a host, given by either name or addr. A zone means something
// only on the agent's own host; an identifier without one stands for any zone, and so the
// second key has none.
func destHostKeys(name string, addr netip.Addr) (exact, loose routes.Key) {
	if !addr.IsValid() {
		exact = routes.OfText(routes.Host, name)
		return exact, exact
	}
	return routes.OfAddr(addr), routes.OfAddr(addr.WithZone(""))
}

func (x *index) join(c *conn) {
	if x.all.count() == 0 {
		x.tell(routes.Key{Kind: routes.AnyAgent}, true)
	}
	x.all.join(c)
	for _, k := range c.keys() {
		g := x.keyed.Get(k)
		if g == nil {
			g = new(group)
			x.keyed.Set(k, g)
			x.tell(k, true)
			x.lengths.Count(k, 1)
		}
		g.join(c)
	}
}

// leave takes out c, which is there.
func (x *index) leave(c *conn) {
	if x.all.leave(c); x.all.count() == 0 {
		x.tell(routes.Key{Kind: routes.AnyAgent}, false)
	}
	for _, k := range c.keys() {
		g := x.keyed.Get(k)
		g.leave(c)
		if g.count() > 0 {
			continue
		}
		x.keyed.Delete(k)
		x.tell(k, false)
		x.lengths.Count(k, -1)
	}
}

func (x *index) tell(k routes.Key, there bool) {
	if x.told != nil && k.Kind != byID {
		x.told(k, there)
	}
}

func (x *index) changed(c *conn) {
	if !x.has(c) {
		return
	}
	x.all.changed(c)
	for _, k := range c.keys() {
		x.keyed.Get(k).changed(c)
	}
}

// of are the connections of an agent.
func (x *index) of(a Agent) []*conn {
	if m := x.all.members.Get(a.key()); m != nil {
		return slices.Clone(m.conns)
	}
	return nil
}

// forget drops the connections of an agent.
func (x *index) forget(a Agent) {
	for _, c := range x.of(a) {
		x.leave(c)
	}
}

// knows says whether an agent has a connection.
func (x *index) knows(a Agent) bool { return x.all.members.Get(a.key()) != nil }

// has says whether c is there.
func (x *index) has(c *conn) bool {
	m := x.all.members.Get(c.agent.key())
	return m != nil && slices.Contains(m.conns, c)
}

// choose picks by the first of the strategies that has one.
func (x *index) choose(by []Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) (*conn, Strategy) {
	for _, s := range by {
		if c, _ := x.pick(s, name, addr, not, now); c != nil {
			return c, s
		}
	}
	return nil, ""
}

// pick finds a connection by one strategy; bits are those of a prefix, counted in IPv6.
// Exactly one of name and addr is set.
func (x *index) pick(s Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) (_ *conn, bits int) {
	switch s {
	case Default:
		return x.all.pick(not, now), 0
	case DefaultRoute:
		return x.keyed.Get(routes.Key{Kind: routes.DefaultRoute}).pick(not, now), 0
	case DestHost:
		exact, loose := destHostKeys(name, addr)
		if c := x.keyed.Get(exact).pick(not, now); c != nil || loose == exact {
			return c, 0
		}
		return x.keyed.Get(loose).pick(not, now), 0
	case DestCIDR:
		for k := range x.lengths.Keys(addr, -1) {
			if c := x.keyed.Get(k).pick(not, now); c != nil {
				return c, int(k.Bits)
			}
		}
	}
	return nil, 0
}

func (x *index) count(s Strategy) int {
	if s == Default {
		return x.all.count()
	}
	return x.keyed.Get(routes.Key{Kind: broad[s]}).count()
}

// first is the preferred connection of a's id: of a itself, else of one that
// calls itself the same; or nil.
func (x *index) first(a Agent) *conn {
	g := x.keyed.Get(routes.OfText(byID, a.ID))
	if g == nil {
		return nil
	}
	if m := g.members.Get(a.key()); m != nil {
		return m.conns[0]
	}
	for _, m := range g.members.All() {
		return m.conns[0]
	}
	return nil
}

func sameHost(a, b string) bool {
	hostA, _, errA := net.SplitHostPort(a)
	hostB, _, errB := net.SplitHostPort(b)
	return errA != nil || errB != nil || hostA == hostB
}
