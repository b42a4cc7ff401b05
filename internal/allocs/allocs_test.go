package allocs

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdicts is a test that notes what it is told.
type verdicts struct {
	testing.TB
	said []string
}

func (v *verdicts) Helper()                     {}
func (v *verdicts) Errorf(f string, arg ...any) { v.said = append(v.said, fmt.Sprintf(f, arg...)) }

var kept []*int

func allocate(n int) {
	kept = kept[:0]
	for i := range n {
		kept = append(kept, &i)
	}
}

func TestAtMost(t *testing.T) {
	v := &verdicts{TB: t}
	AtMost(v, 0, func() { allocate(0) })
	AtMost(v, 3, func() { allocate(3) })
	if len(v.said) != 0 {
		t.Errorf("complained of what is within the budget: %q", v.said)
	}
	AtMost(v, 0, func() { allocate(1) })
	AtMost(v, 2, func() { allocate(3) })
	if raceEnabled {
		if len(v.said) != 0 {
			t.Errorf("counted under the race detector: %q", v.said)
		}
		return
	}
	want := []string{"1 allocation, the budget is 0", "3 allocations, the budget is 2"}
	if fmt.Sprint(v.said) != fmt.Sprint(want) {
		t.Errorf("said %q, want %q", v.said, want)
	}
}
