package testutil

import "testing"

var kept []*int

func allocate(n int) {
	kept = kept[:0]
	for i := range n {
		kept = append(kept, &i)
	}
}

func TestMaxAllocs(t *testing.T) {
	want := []string{"1 allocations, the budget is 0", "3 allocations, the budget is 2"}
	if raceEnabled { // which allocates itself
		want = nil
	}
	EqualSlices(t, said(t, func(t testing.TB) {
		MaxAllocs(t, 0, func() { allocate(0) })
		MaxAllocs(t, 3, func() { allocate(3) })
		MaxAllocs(t, 0, func() { allocate(1) })
		MaxAllocs(t, 2, func() { allocate(3) })
	}), want, "of budgets")
}
