// Package allocs checks budgets of allocations in tests: no allocation may slip
// unnoticed into a path that every byte or every connection takes.
package allocs

import (
	"fmt"
	"testing"
)

const (
	// runs is how often a function is called for one figure: often enough that
	// a stray allocation of the runtime vanishes in the average.
	runs = 200

	// tries is how often a figure above the budget is measured again. An
	// allocation in the code shows each time; one by the rest of the process,
	// such as a pool that was just collected, does not.
	tries = 5
)

// Exact says whether memory is what the code makes it: the race detector takes some of
// its own.
const Exact = !raceEnabled

// AtMost fails t if f allocates more than max times a call, on average and on
// all goroutines together, so others must be idle. f should be one unit of work
// that leaves everything as it was. The race detector adds allocations of its
// own: under it f is only run. It must not be used in parallel tests.
func AtMost(t testing.TB, max float64, f func()) {
	t.Helper()
	if raceEnabled {
		f()
		return
	}
	if got := least(f); got > max {
		t.Errorf("%s, the budget is %v", plural(got), max)
	}
}

// least returns how many allocations a call of f makes, in the best of a few
// tries.
func least(f func()) float64 {
	best := testing.AllocsPerRun(runs, f)
	for range tries - 1 {
		if best == 0 {
			break
		}
		best = min(best, testing.AllocsPerRun(runs, f))
	}
	return best
}

func plural(n float64) string {
	if n == 1 {
		return "1 allocation"
	}
	return fmt.Sprintf("%v allocations", n)
}
