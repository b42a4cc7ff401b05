package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// seen are a server with the crowd and two others, of which one tells nothing.
func seen(context.Context) []Member {
	tenants := []Tenant{
		{Name: "a", State: "serving", Ready: true, Condition: "ready", Agents: 3, Connections: Connections{Open: 2}, Dials: Dials{Total: 2, Failures: map[string]int64{"bound": 2}}},
		{Name: "b", State: "broken", Error: "ca.crt: empty", Condition: "broken", Agents: 1},
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
	if w := ask(mounted(Source{Table: NewTable(), Tenants: crowd}), http.MethodGet, "/api/v1/servers"); w.Code != http.StatusNotFound {
		t.Errorf("a process without others: %d", w.Code)
	}
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
	if a.Agents != 4 || a.Connections.Open != 2 || a.Dials.Failures["bound"] != 2 || b.Agents != 3 || len(b.ServerNames) != 1 {
		t.Errorf("%+v, %+v", a, b)
	}
	if page := get[TenantsPage](t, h, "/api/v1/tenants?servers=all&state=missing"); page.Matched != 1 || page.Total != 6 {
		t.Errorf("%+v", page)
	}
	if own := get[TenantsPage](t, h, "/api/v1/tenants"); own.Servers != 0 || own.Items[0].On != nil || own.Items[1].Condition != "ready" {
		t.Errorf("%+v", own)
	}
	if w := ask(h, http.MethodGet, "/api/v1/tenants?servers=two"); w.Code != http.StatusBadRequest {
		t.Errorf("%d", w.Code)
	}
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
		if took := time.Since(start); took > 0 || asked != 2 {
			t.Errorf("waited %v, asked %d times", took, asked)
		}
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
	if page := get[Page[Server]](t, h, "/api/v1/servers"); page.Total != 1 || page.Items[0].Status.Tenant != "b" {
		t.Errorf("%+v", page)
	}
	if page := get[TenantsPage](t, h, "/api/v1/tenants?servers=all"); page.Total != 1 || page.Items[0].Condition != "ready" {
		t.Errorf("%+v", page)
	}
}
