package admin

import (
	"cmp"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"konnectivity/internal/version"
)

// Source is what the process knows of itself beside its connections. Its
// functions may be called from any goroutine and must not block.
type Source struct {
	Component string        // the program's name
	ID        string        // its own, where it has one
	Table     *Table        // must be given
	Ready     func() error  // nil: always
	Peers     func() []Peer // without rates; nil: none
	More      func(*Status) // adds what only this program knows; nil: nothing
}

// maxQueries is how many lists are made at once; more wait. One of 10,000
// connections costs a few milliseconds.
const maxQueries = 2

// Mount serves the page at / and the API below /api/v1/ on mux.
func Mount(mux *http.ServeMux, source Source) {
	h := &handler{Source: source, slots: make(chan struct{}, maxQueries)}
	for name, answer := range map[string]func(query) any{
		"status":      func(query) any { return h.status() },
		"connections": func(q query) any { return h.Table.connections(q) },
		"peers":       func(q query) any { return h.peers(q) },
		"failures":    func(q query) any { return h.failures(q) },
		"history":     func(query) any { return History{interval.Seconds(), h.Table.history.list()} },
	} {
		mux.Handle("/api/"+Version+"/"+name, guard(h.answer(answer)))
	}
	mux.Handle("/api/", guard(http.HandlerFunc(notFound)))
	mountPage(mux)
}

type handler struct {
	Source
	slots chan struct{}
}

func (h *handler) answer(make func(query) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := parseQuery(r.URL.Query())
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		select {
		case h.slots <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		answer := make(q)
		<-h.slots
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // a client that went away is no event
	}
}

func (h *handler) status() Status {
	t := h.Table
	sum := t.sums.Load()
	s := Status{
		APIVersion: Version, Component: h.Component, ID: h.ID, Build: version.Get(), Started: t.started, Now: time.Now(), Ready: true,
		Connections: Connections{Open: sum.open, Stalled: sum.stalled, Total: int64(t.number.Load())},
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

// peers adds to each peer what goes by it.
func (h *handler) peers(q query) Page[Peer] {
	page := Page[Peer]{Offset: q.offset, Items: []Peer{}}
	if h.Peers == nil {
		return page
	}
	all := h.Peers()
	page.Total = len(all)
	sum := h.Table.sums.Load()
	var matched []Peer
	for _, p := range all {
		if q.role != "" && p.Role != q.role {
			continue
		}
		if q.filter != "" && !contains(p.Identifiers, q.filter) && !contains(p.ID, q.filter) && !contains(p.Remote, q.filter) && !contains(p.Role, q.filter) && !contains(p.Software, q.filter) {
			continue
		}
		f, ok := sum.byNext[p.Role+" "+p.ID]
		if !ok {
			f = sum.bySource[p.Remote]
		}
		p.Up, p.Down, p.Stalled = f.up, f.down, f.stalled
		matched = append(matched, p)
	}
	if q.sort == "rate" {
		slices.SortStableFunc(matched, func(a, b Peer) int {
			n := cmp.Or(cmp.Compare(a.Stalled, b.Stalled), cmp.Compare(a.Up+a.Down, b.Up+b.Down))
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
		if q.filter == "" || contains(f.ID, q.filter) || contains(f.Destination, q.filter) || contains(f.Failure, q.filter) || contains(f.Source, q.filter) {
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
	for kind := range d.byFailure {
		if n := d.byFailure[kind].Load(); n > 0 {
			out[labelOf(kind)] = n
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

// guard lets only reading in, and only by who means this server: a foreign page
// can point a name of its own at a loopback address and then ask by that name
// (DNS rebinding), so names that could be such are refused.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "this API is read-only")
		case !ownHost(r.Host):
			fail(w, http.StatusMisdirectedRequest, "ask by IP address, localhost or the name of a Service")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownHost says whether a Host is an address, or a name that no public DNS has.
func ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return !strings.Contains(name, ".") || strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".localhost") ||
		strings.HasSuffix(name, ".cluster.local")
}
