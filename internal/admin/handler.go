package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"konnectivity/internal/version"
	"konnectivity/tunnel"
)

// Source describes a process, apart from its connections. Its functions may be called
// from any goroutine and must not block.
type Source struct {
	Component string        // the program's name
	ID        string        // of the process; "" if it has none
	Table     *Table        // required
	Ready     func() error  // nil means always
	Peers     func() []Peer // without rates; nil means none
	More      func(*Status) // fills in the fields of this program; nil means none
	Audit     func() string // why audit records cannot be written, "" if they can; nil: it is not shown
	Policy    func() string // why the policy file cannot be used, "" if it can; nil: it is not shown

	// Tenants lists the clusters of a server, without the figures of the Table; nil
	// where there is one cluster.
	Tenants func() []Tenant

	// Of returns the Source of one tenant, or false if there is no such tenant. It is
	// required with Tenants.
	Of func(tenant string) (Source, bool)

	// Others asks the other servers of a set how they are, until ctx ends at the latest;
	// nil where there can be none.
	Others func(ctx context.Context) []Member

	// Tenant is the name of the tenant in a Source that Of returned.
	Tenant string

	// Login identifies the reader of a request; nil shows everything. The
	// reader of one tenant may use page, API and the patterns Shown of mux, which must
	// show no more than ReaderOf allows.
	Login Login
	Shown []string
}

// Site shows a process. All methods may be called from any goroutine.
type Site struct {
	Source
	answers *answers
	set     *membership // nil: there are no other servers
}

// New returns the Site of a process.
func New(source Source) *Site {
	h := &Site{Source: source, answers: newAnswers(source.Table.samples.Load)}
	if source.Others != nil {
		h.set = &membership{ask: source.Others}
	}
	return h
}

// Handler is New and Site.Handler.
func Handler(mux *http.ServeMux, source Source) http.Handler { return New(source).Handler(mux) }

// Handler serves the page at / and the API under /api/v1/ beside the handlers of mux
// (metrics, profiles), and guards all of them.
func (h *Site) Handler(mux *http.ServeMux) http.Handler {
	readers := newReaders(mux, h.Shown)
	for name, answer := range map[string]func(*Site, query) any{
		"status":      func(h *Site, _ query) any { return h.status() },
		"connections": func(h *Site, q query) any { return h.Table.connections(h.Tenant, q) },
		"peers":       func(h *Site, q query) any { return h.peers(q) },
		"failures":    func(h *Site, q query) any { return h.failures(q) },
		"history":     func(h *Site, _ query) any { return h.history() },
		"tenants":     func(h *Site, q query) any { return h.tenants(q) },
		"servers":     func(h *Site, q query) any { return h.servers(q) },
	} {
		if (name != "tenants" || h.Tenants != nil) && (name != "servers" || h.set != nil) {
			readers.handle("/api/"+Version+"/"+name, h.answer(name, answer))
		}
	}
	readers.handle("/api/", http.HandlerFunc(notFound))
	mountPage(readers.handle)
	login := h.Login
	if login == nil {
		login = openLogin
	}
	return guard(login, readers)
}

func (h *Site) answer(name string, make func(*Site, query) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := parseQuery(r.URL.RawQuery)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		of, ok := h.shownTo(ReaderOf(r.Context()), name, q)
		if !ok {
			fail(w, http.StatusNotFound, "no such tenant")
			return
		}
		if q.servers || name == "servers" {
			of.set.look(r.Context())
		}
		body := h.answers.get(r.Context(), of.Tenant+" "+name+" "+q.key(), func() any { return make(of, q) })
		if body == nil {
			return // the client has left
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // not worth a log line: the client went away
	}
}

// shownTo returns the handler for a reader and query, or false if there is no such
// tenant. Only the status differs for one tenant; lists select by the tenant.
func (h *Site) shownTo(who Reader, name string, q query) (*Site, bool) {
	tenant := who.Tenant
	if name == "status" && q.tenant != "" && h.Of != nil {
		if tenant != "" && tenant != q.tenant {
			return nil, false
		}
		tenant = q.tenant
	}
	if tenant == "" {
		return h, true
	}
	source, ok := h.Of(tenant)
	return &Site{Source: source, answers: h.answers}, ok
}

func (h *Site) status() Status {
	s := Status{
		APIVersion: Version, Component: h.Component, ID: h.ID, Tenant: h.Tenant, Build: version.Get(), Started: Past{h.Table.started}, Now: time.Now(), Ready: true,
		Peers: map[string]int{},
	}
	if h.Tenant == "" {
		h.Table.fill(&s)
	} else {
		h.fillTenant(&s)
	}
	if h.Ready != nil {
		if err := h.Ready(); err != nil {
			s.Ready, s.Reason = false, err.Error()
		}
	}
	if h.Audit != nil {
		s.AuditError = h.Audit()
	}
	if h.Policy != nil {
		s.PolicyError = h.Policy()
	}
	if h.More != nil {
		h.More(&s)
	}
	return s
}

// fill adds the figures of all connections.
func (t *Table) fill(s *Status) {
	sum := t.sums.Load()
	s.Connections = Connections{Open: sum.all.open, Stalled: sum.all.stalled, Resuming: sum.all.resuming, Total: int64(t.number.Load())}
	s.Dials = Dials{Total: t.dials.total.Load(), Failed: t.dials.failed.Load(), Failures: t.dials.failures()}
	s.Rates = t.history.newest()
	s.Rates.Up, s.Rates.Down = sum.all.up, sum.all.down
	s.LastGone = t.lastGone("")
}

// history is that of the process; there is none of a tenant.
func (h *Site) history() History {
	all := History{interval.Seconds(), []Point{}}
	if h.Tenant == "" {
		all.Points = h.Table.history.list()
	}
	return all
}

// peersWithRates adds the traffic of each peer, and neighbours if a query asks for
// their roles.
func (h *Site) peersWithRates(q query) []Peer {
	var all []Peer
	if h.Peers != nil {
		all = h.Peers()
	}
	sum := h.Table.sums.Load()
	for i := range all {
		p := &all[i]
		f, ok := sum.byNext[hop{p.Tenant, tunnel.Hop{Role: p.Role, ID: p.ID}}]
		if !ok {
			f = sum.bySource[origin{p.Tenant, p.Remote}]
		}
		p.Up, p.Down, p.Stalled = f.up, f.down, f.stalled
	}
	all = append(all, sum.unlinked(all)...)
	if slices.ContainsFunc(q.roles, func(role string) bool { return role == RoleFrontend || role == RoleDirect || role == RoleDestination }) {
		all = append(all, sum.peers()...)
	}
	if h.Tenant != "" {
		all = slices.DeleteFunc(all, func(p Peer) bool { return p.Tenant != h.Tenant })
	}
	return all
}

// peers lists the peers on either side.
func (h *Site) peers(q query) Page[Peer] {
	all := h.peersWithRates(q)
	total := len(all)
	matched := slices.DeleteFunc(all, func(p Peer) bool {
		return len(q.roles) > 0 && !slices.Contains(q.roles, p.Role) || !q.selects(p.Tenant, p.Identifiers, p.Tenant, p.ID, p.Remote, p.Role, p.Software)
	})
	if q.sort == "rate" {
		sortBy(matched, func(a, b *Peer) int {
			return q.ordered(cmp.Or(cmp.Compare(a.Silent, b.Silent), cmp.Compare(a.Stalled, b.Stalled),
				cmp.Compare(a.Up+a.Down, b.Up+b.Down), strings.Compare(b.ID, a.ID)))
		})
	}
	return pageOf(matched, total, q)
}

func (h *Site) failures(q query) Page[Failure] {
	all := h.Table.failures.list(h.Tenant)
	total := len(all)
	matched := slices.DeleteFunc(all, func(f Failure) bool {
		return !q.selects(f.Tenant, f.ID, f.Tenant, f.Destination, f.Failure, f.Source)
	})
	return pageOf(matched, total, q)
}

// failures counts by label.
func (d *dials) failures() map[string]int64 {
	out := map[string]int64{}
	for kind, count := range d.byFailure {
		if n := count.Load(); n > 0 {
			out[kind.Label()] = n
		}
	}
	return out
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusNotFound, "no such resource; the API is /api/"+Version+"/ with status, connections, peers, failures and history")
}

// fail answers with an error, a sentence.
func fail(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": sentence})
}
