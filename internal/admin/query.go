package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxLimit bounds a page of a list, and so an answer, to about 300 KiB.
	maxLimit     = 1000
	defaultLimit = 100

	// maxFilter is the length of the longest id, that of a server which an agent meets by
	// gRPC, and quoted it fits into a request. The page's bound is a quarter of it in
	// characters, which have at most 3 bytes each, and more than any other id.
	maxFilter = 4096
)

// roles are all that a peer can have.
var roles = []string{RoleClient, RoleServer, RoleAgent, RoleFrontend, RoleDestination, RoleDirect}

// query holds the parameters of a list.
type query struct {
	offset, limit int
	filter        string // lower case
	state, sort   string
	tenant        string   // "" means all
	roles         []string // of peers; none means all but neighbours
	descending    bool
	servers       bool // tenants as all servers have them
}

// parseQuery parses the query of a request's URL. Its error is a sentence for the
// client.
func parseQuery(raw string) (query, error) {
	v, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, errors.New("the query is not URL encoded: want name=value&name=value")
	}
	q := query{limit: defaultLimit, filter: strings.ToLower(v.Get("filter")), state: v.Get("state"), sort: v.Get("sort"), tenant: v.Get("tenant")}
	q.servers = v.Get("servers") == "all"
	if list := v.Get("role"); list != "" {
		q.roles = strings.Split(list, ",")
	}
	unknown := func(role string) bool { return !slices.Contains(roles, role) }
	for name, to := range map[string]*int{"offset": &q.offset, "limit": &q.limit} {
		text := v.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return q, fmt.Errorf("%s: want a number from 0", name)
		}
		*to = n
	}
	q.sort, q.descending = strings.CutPrefix(q.sort, "-")
	q.sort = cmp.Or(q.sort, "since")
	_, isState := stateRank[q.state]
	_, ordersConnections := orders[q.sort]
	_, ordersTenants := tenantOrders[q.sort]
	switch {
	case q.limit > maxLimit:
		return q, fmt.Errorf("limit: want at most %d; ask for the rest by offset", maxLimit)
	case len(q.roles) > len(roles) || slices.ContainsFunc(q.roles, unknown):
		return q, fmt.Errorf("role: want %s, or several of them, separated by commas", strings.Join(roles, ", "))
	case len(q.tenant) > maxFilter:
		return q, fmt.Errorf("tenant: want at most %d bytes", maxFilter)
	case len(q.filter) > maxFilter:
		return q, fmt.Errorf("filter: want at most %d bytes", maxFilter)
	case !ordersConnections && !ordersTenants:
		return q, fmt.Errorf("sort: want one of %s, with - before it for descending", strings.Join(orderNames(), ", "))
	case !q.servers && v.Get("servers") != "":
		return q, errors.New("servers: want all")
	case q.state != "" && !isState && !slices.Contains(Conditions, q.state):
		return q, fmt.Errorf("state: want active, idle, stalled or resuming; of tenants %s", strings.Join(Conditions, ", "))
	}
	return q, nil
}

// key is the same for equal queries only: its texts are quoted.
func (q query) key() string { return fmt.Sprintf("%#v", q) }

// selects reports whether a list contains an item of tenant with these texts.
func (q query) selects(tenant string, texts ...string) bool {
	if q.tenant != "" && tenant != q.tenant {
		return false
	}
	return q.filter == "" || slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), q.filter) })
}

// ordered is n, the comparison of two items by the sort key, or its reverse for a
// descending query.
func (q query) ordered(n int) int {
	if q.descending {
		return -n
	}
	return n
}

// window returns the part of a list that q asks for.
func window[T any](list []T, q query) []T {
	from := min(q.offset, len(list))
	return list[from:min(from+q.limit, len(list))]
}

// pageOf returns the page that q asks for of the matched items among total.
func pageOf[T any](matched []T, total int, q query) Page[T] {
	return Page[T]{Total: total, Matched: len(matched), Offset: q.offset, Items: append([]T{}, window(matched, q)...)}
}

// sortBy sorts items, and keeps the order of equal ones. It sorts pointers, so that large
// items are copied twice each and programs have one copy of the code for all types.
func sortBy[T any](items []T, compare func(a, b *T) int) {
	sorted := make([]*T, len(items))
	for i, item := range items {
		sorted[i] = &item
	}
	slices.SortStableFunc(sorted, compare)
	for i, item := range sorted {
		items[i] = *item
	}
}
