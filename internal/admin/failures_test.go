package admin

import (
	"fmt"
	"testing"

	"konnectivity/internal/testutil"
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
	if len(all) > keptOfTenants || len(all) < keptOfTenants*3/4 {
		t.Errorf("%d are kept, want %d at most", len(all), keptOfTenants)
	}
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
	if len(all) != keptOfATenant || all[0].ID != fmt.Sprint(2*keptOfATenant-1) || all[keptOfATenant-1].ID != fmt.Sprint(keptOfATenant) {
		t.Errorf("of one that is left, %d are kept: %+v", len(all), all)
	}
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
