package resources

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func TestCPUTimeGrowsWithWork(t *testing.T) {
	before := CPUTime()
	for start := time.Now(); CPUTime() < before+10*time.Millisecond; {
		testutil.Requires(t, time.Since(start) <= time.Minute,
			"a minute of work, and %v of processor time", CPUTime()-before)
	}
}
