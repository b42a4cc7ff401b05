package testutil

import (
	"runtime"
	"testing"
)

const (
	// allocRuns is how often a function is called for one figure: often enough
	// that a stray allocation of the runtime vanishes in the average.
	allocRuns = 200

	// allocTries is how often a figure above the budget is measured. An allocation
	// in the code shows each time; one in the rest of the process, such as a pool
	// that was just collected, does not.
	allocTries = 5
)

// ExactMemory reports whether the memory in use is that of the code alone. The race
// detector adds its own.
const ExactMemory = !raceEnabled

// Stacks returns how many bytes the stacks of all goroutines take, once those of goroutines
// that have ended are free.
func Stacks() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.StackInuse)
}

// MaxAllocs fails t if a call of f allocates more than max times, on average and on
// all goroutines together. So other goroutines must be idle, and the test must not
// be parallel. f should be one unit of work that leaves everything as it was. Under
// the race detector, which allocates too, f is called once and nothing is counted.
func MaxAllocs(t testing.TB, max float64, f func()) {
	t.Helper()
	if raceEnabled {
		f()
		return
	}
	if got := leastAllocs(f); got > max {
		t.Errorf("%v allocations, the budget is %v", got, max)
	}
}

// leastAllocs returns the allocations of a call of f, the lowest of allocTries
// averages.
func leastAllocs(f func()) float64 {
	best := testing.AllocsPerRun(allocRuns, f)
	for range allocTries - 1 {
		if best == 0 {
			break
		}
		best = min(best, testing.AllocsPerRun(allocRuns, f))
	}
	return best
}
