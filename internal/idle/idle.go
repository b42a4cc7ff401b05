// Package idle gives memory back once a process has come to rest. Go's runtime
// does so by itself, but takes minutes: stacks that a handshake has grown
// shrink by half a collection, and a collection that nothing causes comes every
// two minutes.
package idle

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"konnectivity/internal/cputime"
)

const (
	// every is how often it looks; also how long a process must be at rest.
	every = 5 * time.Second

	// restShare is the share of one processor below which a process rests.
	// A collection of a small heap costs less than a tick of that.
	restShare = 0.02

	// rounds is how many collections it takes a stack to shrink from the
	// 8 KiB that TLS needs to the 2 KiB that waiting needs.
	rounds = 2

	// worth is how much must have been allocated since for it to be worth
	// the trouble again.
	worth = 1 << 20
)

// Release gives memory back whenever the process has come to rest after doing
// something, until ctx ends.
func Release(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	r := rest{cpu: cputime.Used(), allocated: allocated(), left: rounds}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.due(cputime.Used(), allocated()) {
				debug.FreeOSMemory()
				r.cpu = cputime.Used() // its own does not count
			}
		}
	}
}

// rest decides when it is time.
type rest struct {
	cpu       time.Duration // used up to the last look
	allocated uint64        // bytes up to the last round
	left      int           // rounds before it is enough
}

// due says whether memory should be given back now, given what the process has
// used and allocated so far.
func (r *rest) due(cpu time.Duration, allocated uint64) bool {
	used := cpu - r.cpu
	r.cpu = cpu
	if allocated-r.allocated > worth {
		r.left = rounds
	}
	if used > time.Duration(restShare*float64(every)) || r.left == 0 {
		return false
	}
	r.left--
	r.allocated = allocated
	return true
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
