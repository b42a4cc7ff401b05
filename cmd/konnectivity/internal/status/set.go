package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"konnectivity/internal/admin"
)

// Set is the state of several servers, and of the tenants that they share.
type Set struct {
	Servers    reports        `json:"servers"`    // those with problems first
	Tenants    int            `json:"tenants"`    // that any of the servers has
	Conditions map[string]int `json:"conditions"` // number of tenants by the worst Condition of each
	Matched    int            `json:"illMatched"` // by the filter
	Ill        []Ill          `json:"ill"`        // the worst first

	limit int
}

// Ill is a tenant that has a problem on one of the servers at least.
type Ill struct {
	Name        string   `json:"name"`
	Condition   string   `json:"condition"`   // the worst: one of admin.Conditions
	Reason      string   `json:"reason"`      // on the first of On
	On          []string `json:"on"`          // ids of the servers that have this problem
	Of          int      `json:"of"`          // number of servers with tenants
	Connections int      `json:"connections"` // open ones, on all servers
}

// setOf makes the picture of servers from the reports of each.
func setOf(all reports, filter string, limit int) *Set {
	s := &Set{Servers: once(all), Conditions: map[string]int{}, Ill: []Ill{}, limit: limit}
	for i, r := range s.Servers {
		// The table of tenants tells more.
		s.Servers[i].Troubles = slices.DeleteFunc(r.Troubles, func(t string) bool { return t == unusableTenants(r.Status.Tenants) })
	}
	slices.SortStableFunc(s.Servers, func(a, b Report) int {
		return cmp.Or(cmp.Compare(b.severity(), a.severity()), strings.Compare(a.Status.ID, b.Status.ID))
	})
	var members []admin.Member
	for _, r := range s.Servers {
		members = append(members, admin.Member{ID: cmp.Or(r.Status.ID, r.Address), State: &admin.State{Tenants: r.tenants}})
	}
	tenants, hosts := admin.Across(members)
	s.Tenants = len(tenants)
	for _, t := range tenants {
		s.Conditions[t.Condition]++
		ill := Ill{Name: t.Name, Condition: t.Condition, Reason: tenantState(t), On: t.On, Of: hosts, Connections: t.Connections.Open}
		if admin.Severity(t.Condition) > 0 && ill.matches(filter) {
			s.Ill = append(s.Ill, ill)
		}
	}
	slices.SortFunc(s.Ill, func(a, b Ill) int {
		return cmp.Or(cmp.Compare(admin.Severity(b.Condition), admin.Severity(a.Condition)), cmp.Compare(len(b.On), len(a.On)), strings.Compare(a.Name, b.Name))
	})
	s.Matched = len(s.Ill)
	s.Ill = s.Ill[:min(limit, len(s.Ill))]
	return s
}

func (t *Ill) matches(filter string) bool {
	return strings.Contains(strings.ToLower(t.Name+"\n"+t.Condition+"\n"+t.Reason), strings.ToLower(filter))
}

// severity of a server's problems.
func (r *Report) severity() int {
	switch {
	case r.Error != "":
		return 3
	case !r.Status.Ready:
		return 2
	default:
		return min(1, len(r.Troubles))
	}
}

// once leaves out a server that was found by several of its addresses.
func once(found reports) (all reports) {
	for _, r := range found {
		same := func(s Report) bool {
			return s.Status.ID == r.Status.ID && s.Status.Started.Equal(r.Status.Started.Time)
		}
		if r.Error != "" || !slices.ContainsFunc(all, same) {
			all = append(all, r)
		}
	}
	return all
}

// set asks the servers at addresses.
func (c *Client) set(ctx context.Context, addresses []string, filter string, limit int) *Set {
	all := c.each(addresses, func(r *Report) error {
		if err := c.Report(ctx, r, "", limit); err != nil || r.Status.Tenants == nil {
			return err
		}
		page, err := c.tenants(ctx, r.Address, &Tenants{Sort: "name"})
		r.tenants = page.Items
		return err
	})
	return setOf(all, filter, limit)
}

// maxSet bounds the servers of a set, which are all asked at once.
const maxSet = 64

// lookUp returns the admin ports of services: [https://]HOST[:PORT], of whose host each
// address is a server.
func (c *Client) lookUp(ctx context.Context, services []string) (addresses []string, _ error) {
	_, usualPort, _ := net.SplitHostPort(UsualAdmin[0])
	for _, service := range services {
		name, secure := strings.CutPrefix(service, Secure)
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			host, port = strings.Trim(name, "[]"), usualPort
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, fmt.Errorf("--service %s: %w", service, err)
		}
		for _, ip := range found {
			address := net.JoinHostPort(ip.Unmap().String(), port)
			if c.names.Store(address, host); secure {
				address = Secure + address
			}
			addresses = append(addresses, address)
		}
	}
	slices.Sort(addresses)
	if addresses = slices.Compact(addresses); len(addresses) > maxSet {
		return nil, fmt.Errorf("--service: %d addresses, want %d at most", len(addresses), maxSet)
	}
	return addresses, nil
}

func (s *Set) outcome() error { return s.Servers.outcome() }

func (s *Set) print(p *printer) {
	bad := 0
	for i := range s.Servers {
		bad += min(1, s.Servers[i].severity())
	}
	head := fmt.Sprintf("%s%s%s, %d with problems", p.paint.Bold, Plural(len(s.Servers), "server"), p.paint.Off, bad)
	if s.Tenants > 0 {
		var counts []string
		for _, condition := range slices.SortedFunc(maps.Keys(s.Conditions), func(a, b string) int { return admin.Severity(a) - admin.Severity(b) }) {
			counts = append(counts, fmt.Sprint(s.Conditions[condition], " ", strings.ReplaceAll(condition, "-", " ")))
		}
		head += fmt.Sprintf(" · %s%s%s: %s", p.paint.Bold, Plural(s.Tenants, "tenant"), p.paint.Off, strings.Join(counts, ", "))
	}
	p.line("", head)
	shown := s.Servers[:min(max(s.limit, 1), len(s.Servers))]
	for _, r := range shown {
		fmt.Fprintln(p.out)
		p.process(r)
	}
	p.more(len(s.Servers) - len(shown))
	rows := [][]string{{"TENANT", "ON", "CONNECTIONS", "STATE"}}
	for _, t := range s.Ill {
		on := "all servers"
		if len(t.On) < t.Of {
			on = fmt.Sprintf("%d of %d: %s", len(t.On), t.Of, strings.Join(t.On[:min(maxNamed, len(t.On))], ", "))
		}
		rows = append(rows, []string{t.Name, on, fmt.Sprint(t.Connections), t.Reason})
	}
	p.table(rows, "CONNECTIONS", "ON")
	p.more(s.Matched - len(s.Ill))
}
