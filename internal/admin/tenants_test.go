package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
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

func TestTenantsList(t *testing.T) {
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
		testutil.Equal(t, strings.Join(names, " "), want, "%s", query)
		if page.Total != 6 || page.Conditions["ready"] != 2 || page.Conditions["broken"] != 1 || page.Conditions["stalled"] != 1 || page.Conditions["not-ready"] != 1 || page.Conditions["stale"] != 1 {
			t.Errorf("%s: %d, %v", query, page.Total, page.Conditions)
		}
	}
	for _, query := range []string{"state=odd", "sort=odd"} {
		testutil.Equal(t, ask(h, http.MethodGet, "/api/v1/tenants?"+query).Code, http.StatusBadRequest, "%s", query)
	}
}

// One request of a tenant's readers is answered at a time; the others do not delay
// requests of other readers.
func TestTenantReadersAreSerialized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(func() uint64 { return 0 })
		who := func(tenant string) context.Context {
			return context.WithValue(t.Context(), readerKey{}, Reader{Tenant: tenant, Proven: true})
		}
		a.tenants.turn <- struct{}{} // an answer is being made
		var asking sync.WaitGroup
		for i := range 5 {
			asking.Go(func() { a.get(who("red"), fmt.Sprint("red ", i), func() any { return i }) })
		}
		asking.Go(func() { a.get(who("blue"), "blue", func() any { return 0 }) })
		synctest.Wait()
		testutil.Equal(t, len(a.tenants.kept), 2, "wait where all wait")
		if a.get(who(""), "all", func() any { return 0 }) == nil {
			t.Error("the operator is not answered")
		}
		ctx, leave := context.WithCancel(who("red"))
		leave()
		if a.get(ctx, "red", func() any { return 0 }) != nil {
			t.Error("one who left is answered")
		}
		<-a.tenants.turn
		asking.Wait()
		testutil.Equal(t, len(a.gates), 0, "gates are left")
		time.Sleep(time.Second)
	})
}

// slowReader is a client that does not read its answer.
type slowReader struct {
	*httptest.ResponseRecorder
	asked, goes chan struct{}
}

func (w slowReader) Write(b []byte) (int, error) {
	close(w.asked)
	<-w.goes
	return len(b), nil
}

// Who is slow to take an answer keeps no other reader of the tenant waiting.
func TestSlowReaderHoldsNoGate(t *testing.T) {
	of := func(string) (Source, bool) { return Source{Table: NewTable(), Tenants: crowd, Tenant: "red"}, true }
	h := mounted(Source{Table: NewTable(), Tenants: crowd, Of: of, Login: func(*http.Request) (Reader, bool) { return Reader{"red", true}, true }})
	slow := slowReader{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	var asking sync.WaitGroup
	asking.Go(func() {
		h.ServeHTTP(slow, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/api/v1/tenants", nil))
	})
	<-slow.asked
	if w := ask(h, http.MethodGet, "/api/v1/history"); w.Code != http.StatusOK {
		t.Errorf("%d", w.Code)
	}
	close(slow.goes)
	asking.Wait()
}
