package admin

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// A tenant's failures push out none but its own, and go with it.
func TestTenantFailuresAreSeparate(t *testing.T) {
	var table Table
	add := func(tenant, id string) { table.failures.add(Failure{Tenant: tenant, ID: id}) }
	add("", "own")
	add("quiet", "only")
	for i := range 2 * KeptFailures {
		add("loud", fmt.Sprint(i))
	}
	add("quiet", "last")
	all := table.failures.list("")
	want := []Failure{{Tenant: "quiet", ID: "last"}}
	for i := range keptOfATenant {
		want = append(want, Failure{Tenant: "loud", ID: fmt.Sprint(2*KeptFailures - 1 - i)})
	}
	want = append(want, Failure{Tenant: "quiet", ID: "only"}, Failure{ID: "own"})
	testutil.EqualSlices(t, all, want, "all failures")
	table.Forget("loud")
	all = table.failures.list("")
	testutil.Equal(t, len(all), 3, "failures that are left")
	(*Table)(nil).Forget("loud")
}

// However many tenants have failures, they are not kept without bound; each keeps
// its latest, and more again when there are fewer.
func TestFailuresOfManyTenantsAreBounded(t *testing.T) {
	const tenants = 3 * keptOfTenants / keptOfATenant
	var table Table
	latest := make(map[string]string)
	for i := range keptOfATenant + 1 {
		for n := range tenants {
			name, id := fmt.Sprint("t", n), fmt.Sprint(n, "/", i)
			table.failures.add(Failure{Tenant: name, ID: id})
			latest[name] = id
		}
	}
	all := table.failures.list("")
	testutil.Holds(t, len(all) <= keptOfTenants && len(all) >= keptOfTenants*3/4,
		"%d are kept, want %d at most", len(all), keptOfTenants)
	for _, one := range all[:tenants] {
		testutil.Equal(t, latest[one.Tenant], one.ID, "the latest of %s", one.Tenant)
		delete(latest, one.Tenant)
	}
	testutil.Equal(t, len(latest), 0, "nothing is kept of")
	for n := range tenants - 1 {
		table.Forget(fmt.Sprint("t", n))
	}
	last := fmt.Sprint("t", tenants-1)
	for i := range keptOfATenant * 2 {
		table.failures.add(Failure{Tenant: last, ID: fmt.Sprint(i)})
	}
	all = table.failures.list("")
	testutil.Holds(t, len(all) == keptOfATenant && all[0].ID == fmt.Sprint(2*keptOfATenant-1) &&
		all[keptOfATenant-1].ID == fmt.Sprint(keptOfATenant), "of one that is left, %d are kept: %+v", len(all), all)
}

// As many tenants as there may be keep one failure each.
func TestEveryTenantKeepsAFailure(t *testing.T) {
	var table Table
	for i := range 3 {
		for n := range keptOfTenants + 1 {
			table.failures.add(Failure{Tenant: fmt.Sprint("t", n), ID: fmt.Sprint(i)})
		}
	}
	if all := table.failures.list(""); len(all) != keptOfTenants+1 || all[len(all)-1].ID != "2" {
		t.Errorf("%d are kept, the oldest %+v", len(all), all[len(all)-1])
	}
}

func TestLastDeparture(t *testing.T) {
	table := NewTable()
	h := mounted(Source{Table: table})
	s := get[Status](t, h, "/api/v1/status")
	testutil.Holds(t, s.LastGone == nil, "%+v", s.LastGone)
	for _, c := range []struct {
		err   error
		cause string
		shown int // failures so far
	}{
		{nil, "it was shut down in an orderly way", 0},
		{fmt.Errorf("read: %w", io.EOF), "its connection ended without notice", 1},
		{link.ErrDead, "it fell silent", 2},
		{errors.New("odd"), "its connection was lost: odd", 3},
	} {
		table.Gone(Departure{Tenant: "t", Role: RoleAgent, ID: "a1", Remote: "10.0.0.1:5"}, time.Now().Add(-time.Minute), c.err)
		d := table.lastGone("")
		testutil.Holds(t, d.Tenant == "t" && d.ID == "a1" && d.Role == RoleAgent && d.Cause == c.cause &&
			d.Ordered == (c.err == nil), "%+v, want %q", d, c.cause)
		list := table.failures.list("")
		if len(list) != c.shown || c.shown > 0 && (list[0].Stage != "peer" || list[0].Tenant != "t" || list[0].Destination != "agent a1" || list[0].Cause != c.cause || list[0].Seconds < 59) {
			t.Errorf("%v: failures are %+v", c.err, list)
		}
	}
	s = get[Status](t, mounted(Source{Table: table}), "/api/v1/status")
	testutil.Holds(t, s.LastGone != nil && s.LastGone.Cause == "its connection was lost: odd", "%+v", s.LastGone)
	(*Table)(nil).Gone(Departure{Role: RoleAgent, ID: "a1"}, time.Now(), io.EOF) // a server without an admin port
}

// A tenant's last one is shown until another of its own leaves, or the tenant
// goes.
func TestLastDepartureOfTenant(t *testing.T) {
	table := NewTable()
	last := func(tenant string) string {
		s := get[Status](t, mounted(Source{Table: table, Tenant: tenant, Tenants: crowd}), "/api/v1/status")
		if s.LastGone == nil {
			return ""
		}
		return s.LastGone.Tenant + " " + s.LastGone.ID
	}
	for _, d := range []Departure{{Tenant: "a", ID: "1"}, {Tenant: "b", ID: "2"}, {ID: "own"}} {
		table.Gone(d, time.Now(), nil)
	}
	all, a, b, c := last(""), last("a"), last("b"), last("c")
	testutil.Holds(t, all == " own" && a == "a 1" && b == "b 2" && c == "", "%q, %q, %q, %q", all, a, b, c)
	table.Forget("a")
	a, b = last("a"), last("b")
	testutil.Holds(t, a == "" && b == "b 2", "%q, %q after one is gone", a, b)
}

func TestSilentSeconds(t *testing.T) {
	for last, silent := range map[time.Duration]bool{0: false, 5 * time.Second: false, 8 * time.Second: true} {
		s := SilentSeconds(time.Now().Add(-last))
		testutil.Holds(t, (s > 0) == silent && (!silent || s >= 8), "heard %v ago: %v", last, s)
	}
	testutil.Equal(t, SilentSeconds(time.Time{}), 0, "never heard")
}
