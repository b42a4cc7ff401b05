package testutil

import (
	"fmt"
	"testing"
)

// recorder is a test that keeps its failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

var kept []*int

func allocate(n int) {
	kept = kept[:0]
	for i := range n {
		kept = append(kept, &i)
	}
}

func TestMaxAllocs(t *testing.T) {
	r := &recorder{TB: t}
	MaxAllocs(r, 0, func() { allocate(0) })
	MaxAllocs(r, 3, func() { allocate(3) })
	if len(r.failures) != 0 {
		t.Errorf("complained of what is within the budget: %q", r.failures)
	}
	MaxAllocs(r, 0, func() { allocate(1) })
	MaxAllocs(r, 2, func() { allocate(3) })
	if raceEnabled {
		if len(r.failures) != 0 {
			t.Errorf("counted under the race detector: %q", r.failures)
		}
		return
	}
	want := []string{"1 allocations, the budget is 0", "3 allocations, the budget is 2"}
	if fmt.Sprint(r.failures) != fmt.Sprint(want) {
		t.Errorf("said %q, want %q", r.failures, want)
	}
}
