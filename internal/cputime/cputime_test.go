package cputime_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/cputime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUsedGrowsWithWork(t *testing.T) {
	before := cputime.Used()
	for start := time.Now(); cputime.Used() < before+10*time.Millisecond; {
		if time.Since(start) > time.Minute {
			t.Fatalf("a minute of work, and %v of processor time", cputime.Used()-before)
		}
	}
}
