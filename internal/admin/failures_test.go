package admin

import (
	"fmt"
	"slices"
	"testing"
)

// A tenant's failures push out none but its own, and go with it.
func TestFailuresOfATenantPushOutOnlyItsOwn(t *testing.T) {
	var table Table
	add := func(tenant, id string) { table.failures.add(Failure{Tenant: tenant, ID: id}) }
	add("", "own")
	add("quiet", "only")
	for i := range 2 * keptFailures {
		add("loud", fmt.Sprint(i))
	}
	add("quiet", "last")
	all := table.failures.list()
	want := []Failure{{Tenant: "quiet", ID: "last"}}
	for i := range keptOfATenant {
		want = append(want, Failure{Tenant: "loud", ID: fmt.Sprint(2*keptFailures - 1 - i)})
	}
	want = append(want, Failure{Tenant: "quiet", ID: "only"}, Failure{ID: "own"})
	if !slices.Equal(all, want) {
		t.Errorf("got %+v", all)
	}
	table.Forget("loud")
	if all = table.failures.list(); len(all) != 3 {
		t.Errorf("%d are left, want 3", len(all))
	}
	(*Table)(nil).Forget("loud")
}
