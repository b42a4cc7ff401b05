package admin

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"konnectivity/internal/version"
	"konnectivity/tunnel"
)

// Source provides what the process knows about itself, apart from its
// connections. Its functions may be called from any goroutine and must not
// block.
type Source struct {
	Component string        // the program's name
	ID        string        // the process's id, if it has one
	Table     *Table        // must be given
	Ready     func() error  // nil: always
	Peers     func() []Peer // without rates; nil: none
	More      func(*Status) // adds what only this program knows; nil: nothing

	// Tenants lists the clusters of a server of many, without what the Table
	// knows of them; nil: it is none.
	Tenants func() []Tenant

	// Of is what there is to be known of one of the tenants, and of no other;
	// false: it has none of that name. It must be given if Tenants is.
	Of func(tenant string) (Source, bool)

	// Tenant is the one that a Source that comes of Of is about.
	Tenant string

	// Login says who asks; nil: everybody sees all. Who sees one tenant is shown
	// page and API, and those patterns of mux that are Shown, which have to show
	// no more than ReaderOf says.
	Login Login
	Shown []string
}

// Handler serves the page at / and the API under /api/v1/, in addition to what
// mux serves already (metrics, profiles), and guards all of it.
func Handler(mux *http.ServeMux, source Source) http.Handler {
	h := &handler{Source: source, answers: newAnswers(source.Table.looks.Load)}
	readers := newReaders(mux, source.Shown)
	for name, answer := range map[string]func(*handler, query) any{
		"status":      func(h *handler, _ query) any { return h.status() },
		"connections": func(h *handler, q query) any { return h.Table.connections(h.Tenant, q) },
		"peers":       func(h *handler, q query) any { return h.peers(q) },
		"failures":    func(h *handler, q query) any { return h.failures(q) },
		"history":     func(h *handler, _ query) any { return h.history() },
		"tenants":     func(h *handler, q query) any { return h.tenants(q) },
	} {
		if name != "tenants" || h.Tenants != nil {
			readers.handle("/api/"+Version+"/"+name, h.answer(name, answer))
		}
	}
	readers.handle("/api/", http.HandlerFunc(notFound))
	mountPage(readers.handle)
	login := source.Login
	if login == nil {
		login = anybody
	}
	return guard(login, readers)
}

type handler struct {
	Source
	answers *answers
}

func (h *handler) answer(name string, make func(*handler, query) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := parseQuery(r.URL.Query())
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		of, ok := h.shownTo(ReaderOf(r.Context()), name, q)
		if !ok {
			fail(w, http.StatusNotFound, "no such tenant")
			return
		}
		body := h.answers.get(r.Context(), of.Tenant+" "+name+" "+q.key(), func() any { return make(of, q) })
		if body == nil {
			return // the client has left
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // not worth a log line: the client went away
	}
}

// shownTo is what a question is answered from. The status is the only resource
// that is another for one tenant: lists select by it.
func (h *handler) shownTo(who Reader, name string, q query) (*handler, bool) {
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
	return &handler{source, h.answers}, ok
}

func (h *handler) status() Status {
	s := Status{
		APIVersion: Version, Component: h.Component, ID: h.ID, Tenant: h.Tenant, Build: version.Get(), Started: h.Table.started, Now: time.Now(), Ready: true,
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
	if h.More != nil {
		h.More(&s)
	}
	return s
}

// fill adds what the table knows of all.
func (t *Table) fill(s *Status) {
	sum := t.sums.Load()
	s.Connections = Connections{Open: sum.open, Stalled: sum.stalled, Resuming: sum.resuming, Total: int64(t.number.Load())}
	s.Dials = Dials{Total: t.dials.total.Load(), Failed: t.dials.failed.Load(), Failures: t.dials.failures()}
	s.Rates = t.history.newest()
	s.Rates.Up, s.Rates.Down = sum.all.up, sum.all.down
	s.LastGone = t.gone.of("")
}

// history is of the process: of a tenant none is kept.
func (h *handler) history() History {
	all := History{interval.Seconds(), []Point{}}
	if h.Tenant == "" {
		all.Points = h.Table.history.list()
	}
	return all
}

// peersWithRates adds the traffic of each peer. Neighbours are listed only on
// request.
func (h *handler) peersWithRates(q query) []Peer {
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
func (h *handler) peers(q query) Page[Peer] {
	page := Page[Peer]{Offset: q.offset, Items: []Peer{}}
	all := h.peersWithRates(q)
	page.Total = len(all)
	var matched []Peer
	for _, p := range all {
		if len(q.roles) > 0 && !slices.Contains(q.roles, p.Role) {
			continue
		}
		if q.tenant != "" && p.Tenant != q.tenant {
			continue
		}
		if q.filter != "" && !contains(p.Identifiers, q.filter) && !contains(p.Tenant, q.filter) && !contains(p.ID, q.filter) && !contains(p.Remote, q.filter) && !contains(p.Role, q.filter) && !contains(p.Software, q.filter) {
			continue
		}
		matched = append(matched, p)
	}
	if q.sort == "rate" {
		slices.SortStableFunc(matched, func(a, b Peer) int {
			n := cmp.Or(cmp.Compare(a.Silent, b.Silent), cmp.Compare(a.Stalled, b.Stalled), cmp.Compare(a.Up+a.Down, b.Up+b.Down), strings.Compare(b.ID, a.ID))
			if q.descending {
				return -n
			}
			return n
		})
	}
	page.Matched = len(matched)
	page.Items = append(page.Items, window(matched, q)...)
	return page
}

func (h *handler) failures(q query) Page[Failure] {
	all := h.Table.failures.list(h.Tenant)
	page := Page[Failure]{Total: len(all), Offset: q.offset, Items: []Failure{}}
	var matched []Failure
	for _, f := range all {
		if q.tenant != "" && f.Tenant != q.tenant {
			continue
		}
		if q.filter == "" || contains(f.ID, q.filter) || contains(f.Tenant, q.filter) || contains(f.Destination, q.filter) || contains(f.Failure, q.filter) || contains(f.Source, q.filter) {
			matched = append(matched, f)
		}
	}
	page.Matched = len(matched)
	page.Items = append(page.Items, window(matched, q)...)
	return page
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

// fail answers with a sentence.
func fail(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": sentence})
}
