package admin

import (
	"cmp"
	"slices"
	"strings"
)

// conditions are what a tenant's Condition may be, the most worrying last.
var conditions = []string{"ready", "stalled", "not-ready", "stale", "broken"}

// tenantOrders are the keys that tenants can be sorted by; others that lists
// have mean the name.
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
		return cmp.Compare(slices.Index(conditions, a.Condition), slices.Index(conditions, b.Condition))
	},
}

// condition is what needs to be looked at.
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

// tenants answers q, whose state selects by condition.
func (h *handler) tenants(q query) TenantsPage {
	all := h.Tenants()
	sum := h.Table.sums.Load()
	page := TenantsPage{Page: Page[Tenant]{Total: len(all), Offset: q.offset, Items: []Tenant{}}, Conditions: map[string]int{}}
	var matched []Tenant
	for _, t := range all {
		if now := sum.byTenant[t.Name]; now != nil {
			t.Up, t.Down, t.Connections.Stalled, t.Connections.Resuming = now.up, now.down, now.stalled, now.resuming
		}
		t.Condition = t.condition()
		page.Conditions[t.Condition]++
		if (q.tenant == "" || q.tenant == t.Name) && (q.state == "" || q.state == t.Condition) && t.matches(q.filter) {
			matched = append(matched, t)
		}
	}
	order := tenantOrders[q.sort]
	slices.SortStableFunc(matched, func(a, b Tenant) int {
		n := 0
		if order != nil {
			n = order(a, b)
		}
		if q.descending {
			n = -n
		}
		return cmp.Or(n, strings.Compare(a.Name, b.Name))
	})
	page.Matched = len(matched)
	page.Items = append(page.Items, window(matched, q)...)
	return page
}

// fillTenant adds what is known of the one tenant that is shown.
func (h *handler) fillTenant(s *Status) {
	for _, t := range h.tenants(query{limit: 1}).Items {
		s.Connections, s.Dials = t.Connections, t.Dials
		s.Rates = Point{Up: t.Up, Down: t.Down, Open: t.Connections.Open, Stalled: t.Connections.Stalled}
		s.Peers[RoleAgent], s.Peers[RoleClient] = t.Agents, t.Clients
		s.Ready, s.Reason = t.Ready, t.Reason
	}
	s.LastGone = h.Table.gone.of(h.Tenant)
}

func (t Tenant) matches(filter string) bool {
	return filter == "" || contains(t.Name, filter) || contains(t.State, filter) || contains(t.Error, filter) ||
		slices.ContainsFunc(t.ServerNames, func(name string) bool { return contains(name, filter) })
}
