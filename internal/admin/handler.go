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
}

// Handler serves the page at / and the API under /api/v1/, in addition to what
// mux serves already (metrics, profiles), and guards all of it.
func Handler(mux *http.ServeMux, source Source) http.Handler {
	h := &handler{Source: source, shared: newShared(source.Table.looks.Load)}
	for name, answer := range map[string]func(query) any{
		"status":      func(query) any { return h.status() },
		"connections": func(q query) any { return h.Table.connections(q) },
		"peers":       func(q query) any { return h.peers(q) },
		"failures":    func(q query) any { return h.failures(q) },
		"history":     func(query) any { return History{interval.Seconds(), h.Table.history.list()} },
	} {
		mux.Handle("/api/"+Version+"/"+name, h.answer(name, answer))
	}
	if h.Tenants != nil {
		mux.Handle("/api/"+Version+"/tenants", h.answer("tenants", func(q query) any { return h.tenants(q) }))
	}
	mux.HandleFunc("/api/", notFound)
	mountPage(mux)
	return guard(mux)
}

type handler struct {
	Source
	shared *shared
}

func (h *handler) answer(name string, make func(query) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := parseQuery(r.URL.Query())
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		body := h.shared.get(r.Context(), name+" "+q.key(), func() any { return make(q) })
		if body == nil {
			return // the client has left
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // not worth a log line: the client went away
	}
}

func (h *handler) status() Status {
	t := h.Table
	sum := t.sums.Load()
	s := Status{
		APIVersion: Version, Component: h.Component, ID: h.ID, Build: version.Get(), Started: t.started, Now: time.Now(), Ready: true,
		Connections: Connections{Open: sum.open, Stalled: sum.stalled, Resuming: sum.resuming, Total: int64(t.number.Load())},
		Dials:       Dials{Total: t.dials.total.Load(), Failed: t.dials.failed.Load(), Failures: t.dials.failures()},
		Rates:       t.history.newest(),
		Peers:       map[string]int{},
		LastGone:    t.gone.Load(),
	}
	s.Rates.Up, s.Rates.Down = sum.all.up, sum.all.down
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
			f = sum.bySource[p.Remote]
		}
		p.Up, p.Down, p.Stalled = f.up, f.down, f.stalled
	}
	all = append(all, sum.unlinked(all)...)
	for _, role := range q.roles {
		if role == RoleFrontend || role == RoleDirect || role == RoleDestination {
			return append(all, sum.peers()...)
		}
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
	all := h.Table.failures.list()
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
