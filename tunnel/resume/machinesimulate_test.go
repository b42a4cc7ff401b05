package resume

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

var (
	SimulateFor  = flag.Duration("simulate", 0, "how long to simulate; 0: -faults of the pure part, -runs of connections")
	SimulateSeed = flag.Uint64("seed", 0, "the first seed; 0: random, and printed")
	simCount     = flag.Int("faults", 200_000, "how many faults a run without -simulate makes at least")
)

// seeds are runs that failed once.
var seeds = []uint64{
	7110120496582855824, // an acceptor that had become plain stayed for ever when it was resumed
}

func TestSeeds(t *testing.T) {
	for _, seed := range seeds {
		testutil.Succeeds(t, testutil.Err(simulate(seed)), "seed %d", seed)
	}
}

// TestSimulateMachine runs from one seed after the other. A seed that fails is printed;
// it belongs into seeds then.
func TestSimulateMachine(t *testing.T) {
	seed := *SimulateSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	most := *simCount
	if testing.Short() {
		most /= 40
	}
	start, done := time.Now(), tally{}
	for ; *SimulateFor > 0 && time.Since(start) < *SimulateFor || *SimulateFor == 0 && done.faults < most; seed++ {
		one, err := simulate(seed)
		testutil.Requires(t, err == nil,
			"seed %d: %v (again: go test ./tunnel/resume -run TestSimulateMachine -faults 1 -seed %d)", seed, err, seed)
		done.add(one)
	}
	t.Logf("%d faults and %d carriers resumed by in %d runs before seed %d", done.faults, done.resumed, done.runs, seed)
}
