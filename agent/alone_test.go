package agent

import (
	"testing"

	"konnectivity/internal/testutil"
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
		testutil.Equal(t, alone(c.budget, c.descriptors), c.want, "%d bytes and %d descriptors", c.budget.Max(), c.descriptors)
	}
}
