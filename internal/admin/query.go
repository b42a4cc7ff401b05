package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"konnectivity/tunnel"
)

const (
	// maxLimit bounds a page of a list, and so an answer, to about 300 KiB.
	maxLimit     = 1000
	defaultLimit = 100

	// maxRoles is more than the number of roles.
	maxRoles = 10

	// maxFilter is longer than any host name or id.
	maxFilter = 300
)

// query holds the parameters of a list.
type query struct {
	offset, limit int
	filter        string // lower case
	state, sort   string
	tenant        string   // "": of all
	roles         []string // roles of peers; none means all peers
	descending    bool
}

// parseQuery reads the parameters; the error is a sentence for the client.
func parseQuery(v url.Values) (query, error) {
	q := query{limit: defaultLimit, filter: strings.ToLower(v.Get("filter")), state: v.Get("state"), sort: v.Get("sort"), tenant: v.Get("tenant")}
	if roles := v.Get("role"); roles != "" {
		q.roles = strings.Split(roles, ",")
	}
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
	if q.sort == "" {
		q.sort = "since"
	}
	_, isState := stateRank[q.state]
	_, ordersConnections := orders[q.sort]
	_, ordersTenants := tenantOrders[q.sort]
	switch {
	case q.limit > maxLimit:
		return q, fmt.Errorf("limit: want at most %d; ask for the rest by offset", maxLimit)
	case len(q.roles) > maxRoles:
		return q, fmt.Errorf("role: want at most %d, separated by commas", maxRoles)
	case len(q.tenant) > maxFilter:
		return q, fmt.Errorf("tenant: want at most %d bytes", maxFilter)
	case len(q.filter) > maxFilter:
		return q, fmt.Errorf("filter: want at most %d bytes", maxFilter)
	case !ordersConnections && !ordersTenants:
		return q, fmt.Errorf("sort: want one of %s, with - before it for descending", strings.Join(orderNames(), ", "))
	case q.state != "" && !isState && !slices.Contains(conditions, q.state):
		return q, fmt.Errorf("state: want active, idle, stalled or resuming; of tenants %s", strings.Join(conditions, ", "))
	}
	return q, nil
}

// key is equal for equal queries, and for no others: texts are quoted in it.
func (q query) key() string { return fmt.Sprintf("%#v", q) }

// row is a connection with its sort key.
type row struct {
	*conn
	course   tunnel.ResumeStatus
	state    string
	seconds  float64
	up, down float64
}

// orders are the keys a list of connections can be sorted by.
var orders = map[string]func(a, b row) int{
	"since":       func(a, b row) int { return 0 }, // by number, which also breaks ties
	"id":          func(a, b row) int { return strings.Compare(a.id, b.id) },
	"front":       func(a, b row) int { return strings.Compare(a.front, b.front) },
	"source":      func(a, b row) int { return strings.Compare(a.course.Source, b.course.Source) },
	"destination": func(a, b row) int { return strings.Compare(a.destination, b.destination) },
	"next":        func(a, b row) int { return strings.Compare(a.course.Hop.String(), b.course.Hop.String()) },
	"up":          func(a, b row) int { return cmp.Compare(a.up, b.up) },
	"down":        func(a, b row) int { return cmp.Compare(a.down, b.down) },
	"rate":        func(a, b row) int { return cmp.Compare(a.up+a.down, b.up+b.down) },
	"state": func(a, b row) int { // the most worrying last, so -state puts it first
		return cmp.Or(cmp.Compare(stateRank[a.state], stateRank[b.state]), cmp.Compare(a.seconds, b.seconds))
	},
}

var stateRank = map[string]int{StateIdle: 0, StateActive: 1, StateStalled: 2, StateResuming: 3}

func orderNames() []string {
	var names []string
	for name := range orders {
		names = append(names, name)
	}
	for name := range tenantOrders {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// connections answers q about those of a tenant, or else of all. It looks at
// every connection once and sorts those that match; only those on the page are
// formatted.
func (t *Table) connections(tenant string, q query) Page[Connection] {
	now := time.Now()
	page := Page[Connection]{Offset: q.offset, Items: []Connection{}}
	var rows []row
	t.conns.Range(func(_, value any) bool {
		r := row{conn: value.(*conn)}
		if tenant != "" && r.tenant != tenant {
			return true
		}
		page.Total++
		r.course = r.conn.course()
		r.state, _, r.seconds = r.conn.state(now, r.course)
		if (q.state == "" || q.state == r.state) && (q.tenant == "" || q.tenant == r.tenant) && r.matches(q.filter, r.course) {
			r.up, r.down = r.rates()
			rows = append(rows, r)
		}
		return true
	})
	page.Matched = len(rows)
	order := orders[q.sort]
	if order == nil {
		order = orders["since"]
	}
	slices.SortFunc(rows, func(a, b row) int {
		n := cmp.Or(order(a, b), cmp.Compare(a.number, b.number))
		if q.descending {
			return -n
		}
		return n
	})
	for _, r := range window(rows, q) {
		page.Items = append(page.Items, r.view(now))
	}
	return page
}

func (c *conn) matches(filter string, course tunnel.ResumeStatus) bool {
	if filter == "" {
		return true
	}
	for _, text := range []string{c.id, c.tenant, c.front, course.Source, c.destination, c.resolved, course.Hop.String()} {
		if contains(text, filter) {
			return true
		}
	}
	return false
}

// contains reports whether s contains part, ignoring case.
func contains(text, lower string) bool { return strings.Contains(strings.ToLower(text), lower) }

// window returns the part of a list that q asks for.
func window[T any](list []T, q query) []T {
	from := min(q.offset, len(list))
	return list[from:min(from+q.limit, len(list))]
}
