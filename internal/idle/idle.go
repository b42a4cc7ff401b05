// Package idle returns memory to the system once a process is idle. Go's
// runtime does so by itself, but takes minutes: a stack that grew in a
// handshake shrinks by half in each collection, and an idle process collects
// only every two minutes.
package idle

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"konnectivity/internal/cputime"
)

const (
	// every is how often it checks, and how long a process must have been idle.
	every = 5 * time.Second

	// restShare is the share of one processor below which a process counts as
	// idle. A collection of a small heap costs less than a tick of that.
	restShare = 0.02

	// rounds is how many collections it takes a stack to shrink from the
	// 8 KiB that TLS needs to the 2 KiB that waiting needs.
	rounds = 2

	// worth is how much must have been allocated since the last release to make
	// another worthwhile.
	worth = 1 << 20
)

// Release returns memory whenever the process becomes idle after doing
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
				r.cpu = cputime.Used() // its own use does not count
			}
		}
	}
}

// rest decides when to release memory.
type rest struct {
	cpu       time.Duration // used up to the last check
	allocated uint64        // bytes up to the last round
	left      int           // rounds still to go
}

// due reports whether memory should be returned now, given what the process has
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
