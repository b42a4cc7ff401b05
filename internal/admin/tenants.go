package admin

import (
	"cmp"
	"slices"
	"strings"
)

// tenantOrders are the keys that tenants can be sorted by; others that lists
// have mean the name.
var tenantOrders = map[string]func(a, b Tenant) int{
	"rate":  func(a, b Tenant) int { return cmp.Compare(a.Up+a.Down, b.Up+b.Down) },
	"state": func(a, b Tenant) int { return cmp.Compare(a.trouble(), b.trouble()) },
}

// trouble is how much a tenant needs to be looked at.
func (t Tenant) trouble() int {
	switch {
	case t.State == "broken":
		return 3
	case t.State == "stale":
		return 2
	case !t.Ready:
		return 1
	default:
		return 0
	}
}

// tenants answers q. Its state selects by state of a tenant.
func (h *handler) tenants(q query) Page[Tenant] {
	all := h.Tenants()
	sum := h.Table.sums.Load()
	page := Page[Tenant]{Total: len(all), Offset: q.offset, Items: []Tenant{}}
	var matched []Tenant
	for _, t := range all {
		if q.tenant != "" && q.tenant != t.Name || !t.matches(q.filter) {
			continue
		}
		if now := sum.byTenant[t.Name]; now != nil {
			t.Up, t.Down, t.Connections.Stalled, t.Connections.Resuming = now.up, now.down, now.stalled, now.resuming
		}
		matched = append(matched, t)
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
	if gone := h.Table.gone.Load(); gone != nil && gone.Tenant == h.Tenant {
		s.LastGone = gone
	}
}

func (t Tenant) matches(filter string) bool {
	return filter == "" || contains(t.Name, filter) || contains(t.State, filter) || contains(t.Error, filter) ||
		slices.ContainsFunc(t.ServerNames, func(name string) bool { return contains(name, filter) })
}
