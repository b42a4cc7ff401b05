package registry

import (
	"net"
	"net/netip"
	"slices"

	"konnectivity/tunnel"
)

// index finds groups of connections by what their agents can reach. The
// registry's lock guards it. The zero value is empty, and small: a server of many
// clusters has two for each.
type index struct {
	conns   int
	present map[*conn]bool
	routes  map[string]*group // by Agent.route

	all      group
	byID     map[string]*group // each with as many members as certificates use the id
	byRoute  group
	byAddr   map[netip.Addr]*group
	byHost   map[string]*group
	byPrefix map[netip.Prefix]*group
	lengths  [2]prefixLengths // of byPrefix's keys: IPv4, IPv6

	// How many agents have identifiers that destHost and destCIDR use.
	hosts, cidrs group
}

func (x *index) join(c *conn) {
	if x.present == nil {
		x.present = make(map[*conn]bool)
	}
	x.present[c] = true
	x.conns++
	for _, g := range x.groups(c, true) {
		g.join(c)
	}
}

// leave is a no-op for a connection that has left.
func (x *index) leave(c *conn) {
	if !x.present[c] {
		return
	}
	delete(x.present, c)
	x.conns--
	for _, g := range x.groups(c, false) {
		g.leave(c)
	}
	x.prune(c)
}

func (x *index) changed(c *conn) {
	if !x.present[c] {
		return
	}
	for _, g := range x.groups(c, false) {
		g.changed(c)
	}
}

// groups lists those c belongs to; with create, those that do not exist yet are
// made.
func (x *index) groups(c *conn, create bool) []*group {
	ids := c.agent.Identifiers
	out := []*group{&x.all, entry(&x.routes, c.route, create)}
	add := func(g *group) {
		if g != nil {
			out = append(out, g)
		}
	}
	add(entry(&x.byID, c.agent.ID, create))
	for _, addr := range ids.Addrs {
		add(entry(&x.byAddr, addr, create))
	}
	for _, host := range ids.Hosts {
		add(entry(&x.byHost, host, create))
	}
	for _, prefix := range ids.CIDRs {
		if create && x.byPrefix[prefix] == nil {
			x.lengths[family(prefix.Addr())].add(prefix.Bits())
		}
		add(entry(&x.byPrefix, prefix, create))
	}
	if ids.DefaultRoute {
		add(&x.byRoute)
	}
	if len(ids.Addrs)+len(ids.Hosts) > 0 {
		add(&x.hosts)
	}
	if len(ids.CIDRs) > 0 {
		add(&x.cidrs)
	}
	return out
}

func entry[K comparable](m *map[K]*group, key K, create bool) *group {
	g := (*m)[key]
	if g != nil || !create {
		return g
	}
	if *m == nil {
		*m = make(map[K]*group)
	}
	g = new(group)
	(*m)[key] = g
	return g
}

// prune removes the keys of c that have no agents left.
func (x *index) prune(c *conn) {
	if g := x.byID[c.agent.ID]; g != nil && g.empty() {
		delete(x.byID, c.agent.ID)
	}
	ids := c.agent.Identifiers
	if g := x.routes[c.route]; g != nil && g.empty() {
		delete(x.routes, c.route)
	}
	for _, addr := range ids.Addrs {
		if g := x.byAddr[addr]; g != nil && g.empty() {
			delete(x.byAddr, addr)
		}
	}
	for _, host := range ids.Hosts {
		if g := x.byHost[host]; g != nil && g.empty() {
			delete(x.byHost, host)
		}
	}
	for _, prefix := range ids.CIDRs {
		if g := x.byPrefix[prefix]; g != nil && g.empty() {
			delete(x.byPrefix, prefix)
			x.lengths[family(prefix.Addr())].remove(prefix.Bits())
		}
	}
}

// of are the connections of an agent.
func (x *index) of(a Agent) []*conn {
	if m := x.all.members[a.key()]; m != nil {
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
func (x *index) knows(a Agent) bool { return x.all.members[a.key()] != nil }

// choose picks by the first of the strategies that has one.
func (x *index) choose(by []Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) (*conn, Strategy) {
	for _, s := range by {
		if c := x.pick(s, name, addr, not, now); c != nil {
			return c, s
		}
	}
	return nil, ""
}

// pick finds a connection by one strategy. Exactly one of name and addr is set.
func (x *index) pick(s Strategy, name string, addr netip.Addr, not *conn, now tunnel.Moment) *conn {
	switch s {
	case Default:
		return x.all.pick(not, now)
	case DefaultRoute:
		return x.byRoute.pick(not, now)
	case DestHost:
		return x.pickHost(name, addr, not, now)
	case DestCIDR:
		return x.pickCIDR(addr, not, now)
	}
	return nil
}

func (x *index) pickHost(name string, addr netip.Addr, not *conn, now tunnel.Moment) *conn {
	if !addr.IsValid() {
		return x.byHost[name].tryPick(not, now)
	}
	if c := x.byAddr[addr].tryPick(not, now); c != nil || addr.Zone() == "" {
		return c
	}
	// A zone means something only on the agent's own host; an identifier
	// without one stands for any.
	return x.byAddr[addr.WithZone("")].tryPick(not, now)
}

func (x *index) pickCIDR(addr netip.Addr, not *conn, now tunnel.Moment) *conn {
	if !addr.IsValid() {
		return nil
	}
	addr = addr.WithZone("")
	for _, bits := range x.lengths[family(addr)].longest {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		if c := x.byPrefix[prefix].tryPick(not, now); c != nil {
			return c
		}
	}
	return nil
}

// tryPick is pick on a group that may not exist.
func (g *group) tryPick(not *conn, now tunnel.Moment) *conn {
	if g == nil {
		return nil
	}
	return g.pick(not, now)
}

func (x *index) count(s Strategy) int {
	switch s {
	case Default:
		return len(x.all.members)
	case DefaultRoute:
		return len(x.byRoute.members)
	case DestHost:
		return len(x.hosts.members)
	case DestCIDR:
		return len(x.cidrs.members)
	}
	return 0
}

// first is the preferred connection of a's id: of a itself, else of one that
// calls itself the same; or nil.
func (x *index) first(a Agent) *conn {
	g := x.byID[a.ID]
	if g == nil {
		return nil
	}
	if m := g.members[a.key()]; m != nil {
		return m.conns[0]
	}
	for _, m := range g.members {
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

// prefixLengths are the lengths in use by one family, longest first, so that a
// look-up tries only those.
type prefixLengths struct {
	uses    map[int]int // how many use each; nil: none was used yet
	longest []int
}

func (l *prefixLengths) add(bits int) {
	if l.uses == nil {
		l.uses = make(map[int]int)
	}
	if l.uses[bits]++; l.uses[bits] == 1 {
		l.longest = append(l.longest, bits)
		slices.SortFunc(l.longest, func(a, b int) int { return b - a })
	}
}

func (l *prefixLengths) remove(bits int) {
	if l.uses[bits]--; l.uses[bits] == 0 {
		l.longest = slices.DeleteFunc(l.longest, func(n int) bool { return n == bits })
	}
}

func sameHost(a, b string) bool {
	hostA, _, errA := net.SplitHostPort(a)
	hostB, _, errB := net.SplitHostPort(b)
	return errA != nil || errB != nil || hostA == hostB
}
