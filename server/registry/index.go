package registry

import (
	"net"
	"net/netip"
	"slices"

	"konnectivity/internal/small"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
)

// index finds groups of connections by what their agents can reach. The
// registry's lock guards it. The zero value is empty, and small: a server of many
// clusters has two for each.
type index struct {
	present small.Map[*conn, bool]
	all     group
	keyed   small.Map[key, *group] // those that have members
	lengths [2]routes.Lengths      // of the prefixes in keyed: IPv4, IPv6

	told func(k key, there bool) // called for each key that is added to keyed or removed; may be nil
}

// key is what the agents of a group have in common.
type key struct {
	kind routes.Kind
	name string     // of a route, an id or a host
	addr netip.Addr // the address, or the prefix's
	bits int        // of a prefix
}

// byID is a kind that other servers are not told of. Its groups have as many members as
// certificates use the id. No group is of routes.AnyAgent, since there is index.all.
const byID routes.Kind = 0

// broad are the keys of some agent that a strategy can use.
var broad = map[Strategy]routes.Kind{Default: routes.AnyAgent, DefaultRoute: routes.DefaultRoute, DestHost: routes.AnyHost, DestCIDR: routes.AnyPrefix}

func prefixKey(p netip.Prefix) key { return key{kind: routes.Prefix, addr: p.Addr(), bits: p.Bits()} }

// keys are those of an agent.
func (c *conn) keys() []key {
	ids := c.agent.Identifiers
	keys := []key{{kind: routes.Agent, name: c.route}, {kind: byID, name: c.agent.ID}}
	for _, addr := range ids.Addrs {
		keys = append(keys, key{kind: routes.Addr, addr: addr})
	}
	for _, host := range ids.Hosts {
		keys = append(keys, key{kind: routes.Host, name: host})
	}
	for _, prefix := range ids.CIDRs {
		keys = append(keys, prefixKey(prefix))
	}
	if ids.DefaultRoute {
		keys = append(keys, key{kind: routes.DefaultRoute})
	}
	if len(ids.Addrs)+len(ids.Hosts) > 0 {
		keys = append(keys, key{kind: routes.AnyHost})
	}
	if len(ids.CIDRs) > 0 {
		keys = append(keys, key{kind: routes.AnyPrefix})
	}
	return keys
}

func (x *index) join(c *conn) {
	x.present.Set(c, true)
	if x.all.count() == 0 {
		x.tell(key{kind: routes.AnyAgent}, true)
	}
	x.all.join(c)
	for _, k := range c.keys() {
		g := x.keyed.Get(k)
		if g == nil {
			g = new(group)
			x.keyed.Set(k, g)
			x.tell(k, true)
			if k.kind == routes.Prefix {
				x.lengths[family(k.addr)].Count(uint8(k.bits), 1)
			}
		}
		g.join(c)
	}
}

// leave is a no-op for a connection that has left.
func (x *index) leave(c *conn) {
	if !x.present.Get(c) {
		return
	}
	x.present.Delete(c)
	if x.all.leave(c); x.all.count() == 0 {
		x.tell(key{kind: routes.AnyAgent}, false)
	}
	for _, k := range c.keys() {
		g := x.keyed.Get(k)
		g.leave(c)
		if g.count() > 0 {
			continue
		}
		x.keyed.Delete(k)
		x.tell(k, false)
		if k.kind == routes.Prefix {
			x.lengths[family(k.addr)].Count(uint8(k.bits), -1)
		}
	}
}

func (x *index) tell(k key, there bool) {
	if x.told != nil {
		x.told(k, there)
	}
}

func (x *index) changed(c *conn) {
	if !x.present.Get(c) {
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

// choose picks by the first of the strategies that has one.
func (x *index) choose(by []Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) (*conn, Strategy) {
	for _, s := range by {
		if c, _ := x.pick(s, name, addr, not, now); c != nil {
			return c, s
		}
	}
	return nil, ""
}

// pick finds a connection by one strategy; bits are those of a prefix. Exactly one of
// name and addr is set.
func (x *index) pick(s Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) (_ *conn, bits int) {
	switch s {
	case Default:
		return x.all.pick(not, now), 0
	case DefaultRoute:
		return x.keyed.Get(key{kind: routes.DefaultRoute}).pick(not, now), 0
	case DestHost:
		return x.pickHost(name, addr, not, now), 0
	case DestCIDR:
		return x.pickCIDR(addr, not, now)
	}
	return nil, 0
}

func (x *index) pickHost(name string, addr netip.Addr, not *conn, now tunnel.Moment) *conn {
	if !addr.IsValid() {
		return x.keyed.Get(key{kind: routes.Host, name: name}).pick(not, now)
	}
	if c := x.keyed.Get(key{kind: routes.Addr, addr: addr}).pick(not, now); c != nil || addr.Zone() == "" {
		return c
	}
	// A zone means something only on the agent's own host; an identifier
	// without one stands for any.
	return x.keyed.Get(key{kind: routes.Addr, addr: addr.WithZone("")}).pick(not, now)
}

func (x *index) pickCIDR(addr netip.Addr, not *conn, now tunnel.Moment) (_ *conn, bits int) {
	if !addr.IsValid() {
		return nil, 0
	}
	addr = addr.WithZone("")
	for _, l := range x.lengths[family(addr)] {
		prefix, err := addr.Prefix(int(l.Bits))
		if err != nil {
			continue
		}
		if c := x.keyed.Get(prefixKey(prefix)).pick(not, now); c != nil {
			return c, int(l.Bits)
		}
	}
	return nil, 0
}

func (x *index) count(s Strategy) int {
	if s == Default {
		return x.all.count()
	}
	return x.keyed.Get(key{kind: broad[s]}).count()
}

// first is the preferred connection of a's id: of a itself, else of one that
// calls itself the same; or nil.
func (x *index) first(a Agent) *conn {
	g := x.keyed.Get(key{kind: byID, name: a.ID})
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

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

func sameHost(a, b string) bool {
	hostA, _, errA := net.SplitHostPort(a)
	hostB, _, errB := net.SplitHostPort(b)
	return errA != nil || errB != nil || hostA == hostB
}
