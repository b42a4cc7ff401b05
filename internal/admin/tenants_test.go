package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// crowd are tenants in each condition.
func crowd() []Tenant {
	return []Tenant{
		{Name: "b", State: "serving", Ready: true, Agents: 2, ServerNames: []string{"b.example"}},
		{Name: "c", State: "serving", Ready: true, Agents: 5, Connections: Connections{Open: 3, Stalled: 1}},
		{Name: "d", State: "serving", Reason: "no agent"},
		{Name: "e", State: "stale", Ready: true, Error: "tenant.yaml: wrong"},
		{Name: "f", State: "broken", Error: "clients-ca.crt: wrong"},
		{Name: "a", State: "serving", Ready: true, Agents: 1},
	}
}

func TestTenantsAreSortedSelectedAndCounted(t *testing.T) {
	h := mounted(Source{Table: NewTable(), Tenants: crowd})
	for query, want := range map[string]string{
		"": "a b c d e f", "sort=-state": "f e d c a b", "sort=state": "a b c d e f", "sort=-agents": "c b a d e f", "sort=-connections": "c a b d e f", "sort=-name": "f e d c b a",
		"sort=-rate": "a b c d e f", "sort=front": "a b c d e f", "filter=wrong": "e f", "filter=B.EX": "b", "state=ready": "a b", "state=not-ready": "d", "state=stalled": "c", "state=broken": "f",
		"state=idle": "", "tenant=d": "d", "tenant=x": "", "sort=-state&limit=2&offset=1": "e d",
	} {
		page := get[TenantsPage](t, h, "/api/v1/tenants?"+query)
		var names []string
		for _, item := range page.Items {
			names = append(names, item.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
		if page.Total != 6 || page.Conditions["ready"] != 2 || page.Conditions["broken"] != 1 || page.Conditions["stalled"] != 1 || page.Conditions["not-ready"] != 1 || page.Conditions["stale"] != 1 {
			t.Errorf("%s: %d, %v", query, page.Total, page.Conditions)
		}
	}
	for _, query := range []string{"state=odd", "sort=odd"} {
		if w := ask(h, http.MethodGet, "/api/v1/tenants?"+query); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", query, w.Code)
		}
	}
}

// Of the readers of one tenant, one is answered at a time; the others do not keep
// anybody else waiting.
func TestReadersOfOneTenantWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		d := newReaders(mux, nil)
		hold := make(chan struct{})
		var mu sync.Mutex
		now, most := 0, 0
		d.handle("/", d.inTurn(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if ReaderOf(r.Context()).Tenant != "red" {
				return
			}
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-hold
			mu.Lock()
			now--
			mu.Unlock()
		})))
		h := guard(func(r *http.Request) (Reader, bool) { return Reader{Tenant: r.Header.Get("Who"), Proven: true}, true }, d)
		send := func(who string) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Who", who)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		var asking sync.WaitGroup
		for range 5 {
			asking.Go(func() { send("red") })
		}
		synctest.Wait()
		send("blue")
		send("")
		close(hold)
		asking.Wait()
		if most != 1 || len(d.turns) != 0 {
			t.Errorf("%d at once, %d turns are left", most, len(d.turns))
		}
	})
}
