package admin

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"konnectivity/tunnel"
)

// row is a connection with its sort keys.
type row struct {
	*conn
	status   tunnel.ResumeStatus
	state    string
	seconds  float64 // in that state, where it is stalled or resuming
	up, down float64
}

// orders are the sort keys of connections.
var orders = map[string]func(a, b row) int{
	"since":       func(a, b row) int { return 0 }, // by number, which also breaks ties
	"id":          func(a, b row) int { return strings.Compare(a.ID, b.ID) },
	"front":       func(a, b row) int { return strings.Compare(a.Front, b.Front) },
	"source":      func(a, b row) int { return strings.Compare(a.status.Source, b.status.Source) },
	"destination": func(a, b row) int { return strings.Compare(a.Address, b.Address) },
	"next":        func(a, b row) int { return strings.Compare(a.status.Hop.String(), b.status.Hop.String()) },
	"up":          func(a, b row) int { return cmp.Compare(a.up, b.up) },
	"down":        func(a, b row) int { return cmp.Compare(a.down, b.down) },
	"rate":        func(a, b row) int { return cmp.Compare(a.up+a.down, b.up+b.down) },
	"state": func(a, b row) int {
		return cmp.Or(cmp.Compare(stateRank[a.state], stateRank[b.state]), cmp.Compare(a.seconds, b.seconds))
	},
}

// stateRank sorts states; -state lists the most worrying first.
var stateRank = map[string]int{StateIdle: 0, StateActive: 1, StateStalled: 2, StateResuming: 3}

// orderNames are the sort keys of all lists.
func orderNames() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(orders)), maps.Keys(tenantOrders))
	slices.Sort(names)
	return slices.Compact(names)
}

// connections lists the connections of a tenant, or of all for "". It visits every
// connection once; only those on the page are formatted.
func (t *Table) connections(tenant string, q query) Page[Connection] {
	now, total := time.Now(), 0
	var rows []row
	t.conns.Range(func(_, value any) bool {
		r := row{conn: value.(*conn)}
		if tenant != "" && r.Tenant() != tenant {
			return true
		}
		total++
		r.status = r.resumeStatus()
		r.state, _, r.seconds = r.conn.state(now, r.status)
		if (q.state == "" || q.state == r.state) && r.selectedBy(q) {
			r.up, r.down = r.rates()
			rows = append(rows, r)
		}
		return true
	})
	order := orders[q.sort]
	if order == nil {
		order = orders["since"]
	}
	sortBy(rows, func(a, b *row) int { return q.ordered(cmp.Or(order(*a, *b), cmp.Compare(a.number, b.number))) })
	page := Page[Connection]{Total: total, Matched: len(rows), Offset: q.offset, Items: []Connection{}}
	for _, r := range window(rows, q) {
		page.Items = append(page.Items, r.view(now))
	}
	return page
}

func (r row) selectedBy(q query) bool {
	if q.filter == "" {
		return q.selects(r.Tenant()) // without the cost of the texts
	}
	return q.selects(r.Tenant(), r.ID, r.Tenant(), r.Front, r.status.Source, r.Address, r.resolved, r.status.Hop.String())
}
