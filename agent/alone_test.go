package agent

import (
	"testing"

	"konnectivity/tunnel/link"
)

func TestDetachedLimit(t *testing.T) {
	for _, c := range []struct {
		budget      *link.Budget
		descriptors int
		want        int
	}{
		{link.NewBudget(256 << 20), 0, 65536},
		{link.NewBudget(256 << 20), 20000, 15000},
		{link.NewBudget(16 << 20), 20000, 4096},
		{nil, 1024, 768},
		{nil, 0, 0},
	} {
		if got := alone(c.budget, c.descriptors); got != c.want {
			t.Errorf("%d bytes and %d descriptors: %d, want %d", c.budget.Max(), c.descriptors, got, c.want)
		}
	}
}
