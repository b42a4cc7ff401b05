package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// State is how a server is, as it tells the others of a set.
type State struct {
	Status  Status   `json:"status"`
	Tenants []Tenant `json:"tenants"` // all of them; null: it is no server of many
}

// Member is one of the servers of a set.
type Member struct {
	ID     string
	Remote string // its address; "" for the server that is asked
	Error  string // why its State is not known, a sentence
	State  *State // nil: not known
}

// Server is a Member as /api/v1/servers lists it.
type Server struct {
	ID     string  `json:"id,omitempty"`
	Remote string  `json:"remote,omitempty"` // missing: the server that answers
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"` // missing: see Error
}

const (
	// setAge is how long what other servers have told is shown before they are asked
	// anew; longer, by rest, if that takes longer.
	setAge = 2 * time.Second

	// setTime bounds how long all of them are waited for.
	setTime = 3 * time.Second
)

// membership caches the states of the other servers. A look refreshes them if they are old,
// one look at a time; meanwhile, other looks return at once, with the old states. A nil
// membership has no servers.
type membership struct {
	ask    func(context.Context) []Member
	asking sync.Mutex
	told   atomic.Pointer[told]
}

// told is final.
type told struct {
	members []Member
	until   time.Time // when it is too old
}

// look asks the other servers if what they have told is too old. It returns within twice
// setTime.
func (s *membership) look(ctx context.Context) {
	if s == nil {
		return
	}
	switch last := s.told.Load(); {
	case last == nil:
		s.asking.Lock()
	case time.Now().Before(last.until) || !s.asking.TryLock():
		return
	}
	defer s.asking.Unlock()
	if last := s.told.Load(); last != nil && time.Now().Before(last.until) {
		return // another request has asked
	}
	// Every request is answered from the cache, so the refresh outlives the one that began it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setTime)
	defer cancel()
	start := time.Now()
	members := s.ask(ctx)
	s.told.Store(&told{members, time.Now().Add(max(setAge, rest*time.Since(start)))})
}

// members returns this server and, from the cache, the others. look must have returned once.
func (h *Site) members() []Member {
	all := []Member{{ID: h.ID, State: h.state()}}
	if h.set != nil {
		all = append(all, h.set.told.Load().members...)
	}
	return all
}

func (h *Site) state() *State {
	s := &State{Status: h.status()}
	if h.Tenants != nil {
		s.Tenants = h.ownTenants()
	}
	return s
}

// State returns the JSON of the server's State; nil if ctx ends first.
func (h *Site) State(ctx context.Context) []byte {
	return h.answers.get(ctx, " state", func() any { return h.state() })
}

// servers lists the members, this server first.
func (h *Site) servers(q query) Page[Server] {
	var all []Server
	for _, m := range h.members() {
		v := Server{ID: m.ID, Remote: m.Remote, Error: m.Error}
		if m.State != nil {
			v.Status = &m.State.Status
		}
		all = append(all, v)
	}
	return pageOf(all, len(all), q)
}

// Missing is the Condition of a tenant on a server without it, if another server has it.
const Missing = "missing"

// Severity orders conditions; "" comes before all.
func Severity(condition string) int { return slices.Index(Conditions, condition) }

// Across merges the tenants of all members: counts are summed, and the condition is the
// worst. They are sorted by name. servers is the number of members with tenants.
func Across(members []Member) (all []Tenant, servers int) {
	var of []map[string]Tenant // by name, of each of hosts
	var hosts []string
	names := make(map[string]bool)
	for _, m := range members {
		if m.State == nil || m.State.Tenants == nil {
			continue
		}
		has := make(map[string]Tenant)
		for _, t := range m.State.Tenants {
			has[t.Name], names[t.Name] = t, true
		}
		hosts, of = append(hosts, m.ID), append(of, has)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := Tenant{Name: name}
		for i, host := range hosts {
			now, known := of[i][name]
			if !known {
				now = Tenant{Name: name, State: Missing, Error: "other servers have it", Condition: Missing}
			}
			t.add(now, host)
		}
		all = append(all, t)
	}
	return all, len(hosts)
}

// add adds what one more server has of the tenant.
func (t *Tenant) add(now Tenant, server string) {
	sum, worse := *t, cmp.Compare(Severity(now.Condition), Severity(t.Condition))
	if worse > 0 {
		*t = now
		t.On = nil
	}
	if worse >= 0 {
		t.On = append(t.On, server)
	}
	names := slices.Concat(sum.ServerNames, now.ServerNames)
	slices.Sort(names)
	t.ServerNames = slices.Compact(names)
	t.Digest = "" // servers may read files of their own
	t.Agents, t.Clients, t.Refused = sum.Agents+now.Agents, sum.Clients+now.Clients, sum.Refused+now.Refused
	t.UpBytes, t.DownBytes, t.Up, t.Down = sum.UpBytes+now.UpBytes, sum.DownBytes+now.DownBytes, sum.Up+now.Up, sum.Down+now.Down
	t.Connections, t.Dials = sum.Connections.plus(now.Connections), sum.Dials.plus(now.Dials)
}

func (c Connections) plus(o Connections) Connections {
	c.Open += o.Open
	c.Stalled += o.Stalled
	c.Total += o.Total
	c.Resuming += o.Resuming
	return c
}

// plus is the sum, with a map of its own.
func (d Dials) plus(o Dials) Dials {
	both := maps.Clone(d.Failures)
	if both == nil {
		both = map[string]int64{}
	}
	for label, n := range o.Failures {
		both[label] += n
	}
	return Dials{Total: d.Total + o.Total, Failed: d.Failed + o.Failed, Failures: both}
}
