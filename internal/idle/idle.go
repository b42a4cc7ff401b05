// Package idle returns memory to the system once a process is idle. Go's
// runtime does so by itself, but takes minutes: a stack that grew in a
// handshake shrinks by half in each collection, and an idle process collects
// only every two minutes.
//
// Package cli runs it in every program.
package idle

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"konnectivity/internal/cputime"
)

const (
	// every is how often it checks, and how long a process must have been idle.
	every = 5 * time.Second

	// restShare is the share of one processor below which a process counts as
	// idle: a server with 2,000 links of 1,000 clusters uses half of it for their
	// pings.
	restShare = 0.1

	// worthLeast is how much must have been allocated since the last release to
	// make another worthwhile, and worthShare the same as a part of what is in
	// use, all of which a release looks at.
	worthLeast = 1 << 20
	worthShare = 4
)

// Release returns memory whenever the process becomes idle after doing
// something, until ctx ends.
func Release(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	r := rest{cpu: cputime.Used(), heap: look()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.due(cputime.Used(), look()) {
				release()
				r.cpu = cputime.Used() // its own use does not count
			}
		}
	}
}

// release takes two collections: a stack shrinks by half in each, from the 8 KiB
// that TLS needs to the 2 KiB that waiting needs, and what lies in a sync.Pool
// outlives the first.
func release() {
	runtime.GC()
	debug.FreeOSMemory()
}

// heap is what the runtime knows of its own.
type heap struct {
	allocated uint64 // bytes, since the process started
	live      uint64 // bytes in use when they were last counted
}

// rest decides when to release memory.
type rest struct {
	cpu  time.Duration // used up to the last check
	heap heap          // at the last release
	done bool          // nothing has happened since
}

// due reports whether memory should be returned now, given what the process has
// used and allocated so far.
func (r *rest) due(cpu time.Duration, now heap) bool {
	used := cpu - r.cpu
	r.cpu = cpu
	if now.allocated-r.heap.allocated > max(worthLeast, now.live/worthShare) {
		r.done = false
	}
	if used > time.Duration(restShare*float64(every)) || r.done {
		return false
	}
	r.done, r.heap = true, now
	return true
}

func look() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return heap{allocated: sample[0].Value.Uint64(), live: sample[1].Value.Uint64()}
}
