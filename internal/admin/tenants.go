package admin

import (
	"cmp"
	"slices"
	"strings"
)

// Conditions are the values of a tenant's Condition, the most worrying last.
var Conditions = []string{"ready", "stalled", "not-ready", "stale", "broken", Missing}

// tenantOrders are the sort keys of tenants; those of other lists mean the name.
var tenantOrders = map[string]func(a, b Tenant) int{
	"rate":        func(a, b Tenant) int { return cmp.Compare(a.Up+a.Down, b.Up+b.Down) },
	"up":          func(a, b Tenant) int { return cmp.Compare(a.Up, b.Up) },
	"down":        func(a, b Tenant) int { return cmp.Compare(a.Down, b.Down) },
	"agents":      func(a, b Tenant) int { return cmp.Compare(a.Agents, b.Agents) },
	"clients":     func(a, b Tenant) int { return cmp.Compare(a.Clients, b.Clients) },
	"connections": func(a, b Tenant) int { return cmp.Compare(a.Connections.Open, b.Connections.Open) },
	"name":        func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) },
	"wrong":       func(a, b Tenant) int { return strings.Compare(a.Error+a.Reason, b.Error+b.Reason) },
	"state": func(a, b Tenant) int {
		return cmp.Compare(slices.Index(Conditions, a.Condition), slices.Index(Conditions, b.Condition))
	},
}

// condition is the worst of the tenant's problems.
func (t Tenant) condition() string {
	switch {
	case t.State == "broken" || t.State == "stale":
		return t.State
	case !t.Ready:
		return "not-ready"
	case t.Connections.Stalled > 0:
		return "stalled"
	default:
		return "ready"
	}
}

// ownTenants are this server's.
func (h *Site) ownTenants() []Tenant {
	all, sum := h.Tenants(), h.Table.sums.Load()
	for i := range all {
		t := &all[i]
		if now, ok := sum.byTenant[t.Name]; ok {
			t.Up, t.Down, t.Connections.Stalled, t.Connections.Resuming = now.up, now.down, now.stalled, now.resuming
		}
		t.Condition = t.condition()
	}
	return all
}

// tenants lists the tenants, those of all servers if q asks for them; the state of q selects
// by condition.
func (h *Site) tenants(q query) TenantsPage {
	var all []Tenant
	servers := 0
	if q.servers {
		all, servers = Across(h.members())
	} else {
		all = h.ownTenants()
	}
	total, conditions := len(all), map[string]int{}
	var matched []Tenant
	for _, t := range all {
		conditions[t.Condition]++
		if (q.state == "" || q.state == t.Condition) && q.selects(t.Name, append([]string{t.Name, t.State, t.Error}, t.ServerNames...)...) {
			matched = append(matched, t)
		}
	}
	order := tenantOrders[q.sort]
	if order == nil {
		order = func(a, b Tenant) int { return 0 }
	}
	sortBy(matched, func(a, b *Tenant) int { return cmp.Or(q.ordered(order(*a, *b)), strings.Compare(a.Name, b.Name)) })
	return TenantsPage{pageOf(matched, total, q), conditions, servers}
}

// fillTenant adds the figures of the tenant that is shown.
func (h *Site) fillTenant(s *Status) {
	for _, t := range h.tenants(query{limit: 1}).Items {
		s.Connections, s.Dials = t.Connections, t.Dials
		s.Rates = Point{Up: t.Up, Down: t.Down, Open: t.Connections.Open, Stalled: t.Connections.Stalled}
		s.Peers[RoleAgent], s.Peers[RoleClient] = t.Agents, t.Clients
		s.Ready, s.Reason = t.Ready, t.Reason
	}
	s.LastGone = h.Table.lastGone(h.Tenant)
}
