package status

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// crowded is the admin API of a server of a thousand tenants, as change leaves them.
func crowded(t *testing.T, id string, change func(i int, x *admin.Tenant) (known bool)) (address string) {
	t.Helper()
	return served(t, admin.Source{Component: serverComponent, ID: id, Table: admin.NewTable(),
		Tenants: func() (all []admin.Tenant) {
			for i := range 1000 {
				x := admin.Tenant{Name: fmt.Sprintf("cluster-%03d", i), State: "serving", Ready: true, Connections: admin.Connections{Open: 2}}
				if change(i, &x) {
					all = append(all, x)
				}
			}
			return all
		},
		More: func(s *admin.Status) {
			s.Peers[admin.RoleAgent], s.Tenants, s.Ready = 1000, map[string]int{"serving": 1000, "broken": 1}, true
		},
	})
}

// Of a thousand tenants, those with problems are named, the worst first, with the servers
// that have the problem; the others are counted.
func TestSet(t *testing.T) {
	a := crowded(t, "server-a", func(i int, x *admin.Tenant) bool {
		switch {
		case i == 500:
			x.State, x.Error = "broken", "agents-ca.crt: no certificate"
		case i >= 900:
			x.Ready, x.Reason = false, "no agent is connected"
		}
		return true
	})
	b := crowded(t, "server-b", func(i int, x *admin.Tenant) bool {
		if i == 999 {
			x.Ready, x.Reason = false, "no agent is connected"
		}
		return i != 7
	})
	down := testutil.Refusing(t)
	var out strings.Builder
	view := View{Limit: 5, Services: []string{a, b, down, "127.0.0.1:" + portOf(a)}}
	testutil.Equal(t, view.Show(t.Context(), &out, nil), error(errNoAnswer), "show")
	text := out.String()
	at := 0
	for _, want := range []string{ // in this order
		"3 servers, 1 with problems · 1000 tenants: 898 ready, 100 not ready, 1 broken, 1 missing\n", down + ": no answer",
		"server-a, ready", "server-b, ready", "cluster-007  1 of 2: server-b", "missing: other servers have it",
		"cluster-500  1 of 2: server-a", "broken: agents-ca.crt: no certificate", "cluster-999  all servers", "cluster-900  1 of 2: server-a", "not ready: no agent is connected", "and 97 more",
	} {
		i := strings.Index(text[at:], want)
		testutil.Requires(t, i >= 0, "no %q where it should be in\n%s", want, text)
		at += i
	}
	testutil.Holds(t, !strings.Contains(text, "konnectivity tenants list") && strings.Count(text, "server-a, ready") == 1 &&
		len(text) <= 4<<10, "%d bytes:\n%s", len(text), text)

	out.Reset()
	view = View{Limit: 1000, JSON: true, Services: []string{a, b}, Filter: "NO AGENT"}
	testutil.NoError(t, view.Show(t.Context(), &out, nil))
	var set Set
	testutil.NoError(t, json.Unmarshal([]byte(out.String()), &set))
	if set.Matched != 100 || len(set.Ill) != 100 || set.Tenants != 1000 || set.Conditions["broken"] != 1 || set.Ill[0].Name != "cluster-999" || set.Ill[0].Connections != 4 {
		t.Errorf("%d of %d, %v, %+v", len(set.Ill), set.Matched, set.Conditions, set.Ill[0])
	}
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// Servers are bounded too, and those with problems are not left out.
func TestSetOfManyServers(t *testing.T) {
	now := time.Now()
	var all []Report
	for i := range 20 {
		all = append(all, Report{Address: fmt.Sprint("10.0.0.", i, ":8095"), Status: admin.Status{Component: serverComponent, ID: fmt.Sprint("server-", i), Ready: i != 12, Reason: "no agent", Now: now, Started: admin.Past{Time: now}}})
	}
	all = append(all, Report{Address: "10.0.0.99:8095", Error: "no answer"}, Report{Address: "10.0.0.98:8095", Error: "no answer"})
	set := setOf(all, "", 4)
	var out strings.Builder
	set.print(&printer{out: &out})
	for _, want := range []string{"22 servers, 3 with problems\n", "10.0.0.99", "10.0.0.98", "server-12, not ready: no agent", "server-0, ready", "and 18 more"} {
		testutil.Contains(t, out.String(), want, "the set")
	}
}

func TestServicesAreLookedUp(t *testing.T) {
	c := newClient(t)
	got, err := c.lookUp(t.Context(), []string{"127.0.0.1", Secure + "[::1]:9", "127.0.0.1:8095"})
	testutil.Holds(t, err == nil && slices.Equal(got, []string{"127.0.0.1:8095", Secure + "[::1]:9"}), "%q, %v", got, err)
	_, err = c.lookUp(t.Context(), []string{"a b"})
	testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), "--service a b: "), "%v", err)
	var many []string
	for i := range maxSet + 1 {
		many = append(many, fmt.Sprint("10.0.0.", i))
	}
	testutil.ErrorSays(t, testutil.Err(c.lookUp(t.Context(), many)), "want 64 at most", "too many")
}
