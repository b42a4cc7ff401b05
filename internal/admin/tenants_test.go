package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/admission"
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

// Readers of several tenants are answered in turn, however many requests one of them has; none of
// these delays the operator's.
func TestTenantReadersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(func() uint64 { return 0 })
		who := func(tenant string) context.Context {
			return context.WithValue(t.Context(), readerKey{}, Reader{Tenant: tenant, Proven: true})
		}
		other := new(admission.Ticket)
		testutil.NoError(t, a.tenants.turns.Wait(t.Context(), other)) // an answer is being made
		var made []string                                             // by one at a time
		var asking sync.WaitGroup
		ask := func(tenant string, n int) {
			asking.Go(func() {
				a.get(who(tenant), fmt.Sprint(tenant, n), func() any { made = append(made, tenant); return n })
			})
			synctest.Wait()
		}
		for i := range 3 {
			ask("red", i)
		}
		ask("blue", 0)
		testutil.Holds(t, a.get(who(""), "all", func() any { return 0 }) != nil, "the operator is not answered")
		ctx, leave := context.WithCancel(who("red"))
		leave()
		testutil.Holds(t, a.get(ctx, "red", func() any { return 0 }) == nil, "one who left is answered")
		a.tenants.turns.Done(other)
		asking.Wait()
		testutil.EqualSlices(t, made, []string{"red", "blue", "red", "red"}, "answers were made for")
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
	testutil.Equal(t, ask(h, http.MethodGet, "/api/v1/history").Code, http.StatusOK, "another reader")
	close(slow.goes)
	asking.Wait()
}

// seen are a server with the crowd and two others, of which one tells nothing.
func seen(context.Context) []Member {
	tenants := []Tenant{
		{Name: "a", State: "serving", Ready: true, Condition: "ready", Agents: 3, Connections: Connections{Open: 2}, Dials: Dials{Total: 2, Failures: map[string]int64{"bound": 2}}},
		{Name: "b", State: "broken", Error: "ca.crt: empty", Condition: "broken", Agents: 1, Digest: "x"},
		{Name: "c", State: "serving", Ready: true, Condition: "ready", Connections: Connections{Open: 1}},
		{Name: "d", State: "serving", Reason: "no agent here either", Condition: "not-ready"},
		{Name: "e", State: "serving", Ready: true, Condition: "ready"},
	}
	return []Member{{ID: "two", Remote: "192.0.2.2:8096", State: &State{Status{ID: "two", Ready: true}, tenants}}, {Remote: "192.0.2.3:8096", Error: "there is no link to it: refused"},
		{ID: "four", Remote: "192.0.2.4:8096", State: &State{Status: Status{ID: "four", Ready: true}}}} // it has no tenants, so none is missing
}

func TestServersOfASet(t *testing.T) {
	h := mounted(Source{ID: "one", Table: NewTable(), Tenants: crowd, Others: seen, Ready: func() error { return errors.New("no agent") }})
	page := get[Page[Server]](t, h, "/api/v1/servers")
	if all := page.Items; page.Total != 4 || all[0].ID != "one" || all[0].Remote != "" || all[0].Status.Reason != "no agent" || all[1].ID != "two" || !all[1].Status.Ready || all[2].Error == "" || all[2].Status != nil {
		t.Errorf("%+v", page)
	}
	w := ask(mounted(Source{Table: NewTable(), Tenants: crowd}), http.MethodGet, "/api/v1/servers")
	testutil.Holds(t, w.Code == http.StatusNotFound, "a process without others: %d", w.Code)
}

// A tenant is as ill as on the server where it is worst, and its counts are added up.
func TestTenantsOfASet(t *testing.T) {
	h := mounted(Source{ID: "one", Table: NewTable(), Tenants: crowd, Others: seen})
	page := get[TenantsPage](t, h, "/api/v1/tenants?servers=all&sort=-state")
	var got []string
	for _, v := range page.Items {
		got = append(got, v.Name+" "+v.Condition+" "+strings.Join(v.On, "+")+": "+v.Error+v.Reason)
	}
	want := []string{
		"f missing two: other servers have it", "b broken two: ca.crt: empty", "e stale one: tenant.yaml: wrong", "d not-ready one+two: no agent", "c stalled one: ", "a ready one+two: ",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || page.Servers != 2 || page.Conditions["ready"] != 1 || page.Conditions[Missing] != 1 {
		t.Errorf("%s\nwant\n%s\n%d servers, %v", strings.Join(got, "\n"), strings.Join(want, "\n"), page.Servers, page.Conditions)
	}
	a, b := page.Items[5], page.Items[1]
	testutil.Holds(t, a.Agents == 4 && a.Connections.Open == 2 && a.Dials.Failures["bound"] == 2 && b.Agents == 3 &&
		len(b.ServerNames) == 1 && b.Digest == "", "%+v, %+v", a, b)
	page = get[TenantsPage](t, h, "/api/v1/tenants?servers=all&state=missing")
	testutil.Holds(t, page.Matched == 1 && page.Total == 6, "%+v", page)
	own := get[TenantsPage](t, h, "/api/v1/tenants")
	testutil.Holds(t, own.Servers == 0 && own.Items[0].On == nil && own.Items[1].Condition == "ready", "%+v", own)
	testutil.Equal(t, ask(h, http.MethodGet, "/api/v1/tenants?servers=two").Code, http.StatusBadRequest, "servers=two")
}

// The others are asked by one request at a time, for a bounded time, and seldom; where they
// do not answer, only the first look waits.
func TestOthersAreAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, hang := 0, false
		s := &membership{ask: func(ctx context.Context) []Member {
			asked++
			if hang {
				<-ctx.Done()
			}
			return nil
		}}
		gone, leave := context.WithCancel(t.Context())
		leave() // who looks first does not wait for the answer
		for range 5 {
			s.look(gone)
		}
		time.Sleep(setAge)
		testutil.Equal(t, asked, 1, "how often asked at once")
		hang = true
		start := time.Now()
		var first sync.WaitGroup
		first.Go(func() { s.look(t.Context()) })
		synctest.Wait()
		for range 5 {
			s.look(t.Context())
		}
		took := time.Since(start)
		testutil.Holds(t, took <= 0 && asked == 2, "waited %v, asked %d times", took, asked)
		first.Wait()
		testutil.Equal(t, time.Since(start), setTime, "asked for")
		time.Sleep(rest*setTime - 1)
		s.look(t.Context())
		testutil.Equal(t, asked, 2, "what takes long is repeated at once")
	})
}

// Whoever may see one tenant sees no other server.
func TestATenantsReaderSeesNoOtherServer(t *testing.T) {
	source := Source{ID: "one", Table: NewTable(), Tenants: crowd, Others: seen, Login: func(*http.Request) (Reader, bool) { return Reader{Tenant: "b", Proven: true}, true }}
	source.Of = func(name string) (Source, bool) {
		return Source{ID: "one", Table: source.Table, Tenant: name, Tenants: func() []Tenant { return crowd()[:1] }}, true
	}
	h := mounted(source)
	page := get[Page[Server]](t, h, "/api/v1/servers")
	testutil.Holds(t, page.Total == 1 && page.Items[0].Status.Tenant == "b", "%+v", page)
	all := get[TenantsPage](t, h, "/api/v1/tenants?servers=all")
	testutil.Holds(t, all.Total == 1 && all.Items[0].Condition == "ready", "%+v", all)
}
