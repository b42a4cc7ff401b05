// Package allocs holds code to a budget of allocations, in tests: paths that
// every byte or every connection takes must not grow one unnoticed.
package allocs

import (
	"fmt"
	"testing"
)

const (
	// runs is how often a function is called for one figure, enough for a
	// stray allocation of the runtime to vanish in the average.
	runs = 200

	// tries is how often a figure above the budget is taken again. What
	// somebody added to the code shows each time; what the rest of the
	// process allocates meanwhile, such as a pool that was just collected,
	// does not.
	tries = 5
)

// AtMost fails t if f allocates more than max times a call, on average and on
// all goroutines together, so others must be at rest. f should be one unit of
// work that leaves everything as it was. The race detector adds allocations of
// its own: under it f is only run. It must not be used in parallel tests.
func AtMost(t testing.TB, max float64, f func()) {
	t.Helper()
	if raceEnabled {
		f()
		return
	}
	if got := Least(f); got > max {
		t.Errorf("%s, the budget is %v", plural(got), max)
	}
}

// Least is how often f allocates a call, in the best of a few tries.
func Least(f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range tries - 1 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

func plural(n float64) string {
	if n == 1 {
		return "1 allocation"
	}
	return fmt.Sprintf("%v allocations", n)
}
