package resources

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"konnectivity/internal/wait"
)

const (
	// idleInterval is the time between two checks, and the time for which a
	// process must have been idle.
	idleInterval = 5 * time.Second

	// idleShare is the share of one processor below which a process counts as
	// idle, for each idleHeap of live heap that it has begun. Pings take as much more
	// as links take memory: a server with 2,000 links of 1,000 clusters has 40 MB, and
	// uses half of the share.
	idleShare = 0.1
	idleHeap  = 64 << 20

	// minAllocated is how many bytes must have been allocated since the last
	// release to make another one worthwhile, and at most since the last check: the
	// goroutines of connections that have just been made rest some seconds later
	// (tunnel.Source). It is a quarter of the live heap where that is more, because a
	// release scans all of it: liveShare.
	minAllocated = 1 << 20
	liveShare    = 4

	// minHeld is the live heap from which a process that stays idle releases again:
	// what its connections held becomes garbage when they end, and that allocates
	// nothing. firstPause and maxPause are the checks from one such release to the
	// next; each pause is twice as long as the one before. In maxPause the runtime
	// would collect by itself.
	minHeld    = 16 << 20
	firstPause = 2
	maxPause   = int(2 * time.Minute / idleInterval)
)

// ReleaseIdle returns memory to the system whenever the process becomes idle after
// doing something, and now and then while it is idle and holds much, until ctx ends.
// Go's runtime does so by itself, but takes minutes: a stack that grew in a handshake
// shrinks by half in each collection, and an idle process collects only every two minutes.
func ReleaseIdle(ctx context.Context) {
	began := readHeap()
	d := idleDetector{cpu: CPUTime(), seen: began.allocated, heap: began}
	wait.Every(ctx, idleInterval, func() {
		if d.due(CPUTime(), readHeap()) {
			release()
			d.cpu = CPUTime() // the release's own use does not count
		}
	})
}

// release collects twice: a stack shrinks by half in each collection, from the
// 8 KiB that TLS needs to the 2 KiB that waiting needs, and the content of a
// sync.Pool outlives the first one.
func release() {
	runtime.GC()
	debug.FreeOSMemory()
}

// heap is a reading of the runtime's counters.
type heap struct {
	allocated uint64 // bytes, since the process started
	live      uint64 // bytes that the last collection found in use
}

// idleDetector decides when to release memory.
type idleDetector struct {
	cpu    time.Duration // used up to the last check
	seen   uint64        // bytes allocated up to the last check
	heap   heap          // at the last release
	pause  int           // idle checks from the last release to the next; 0: it is due
	waited int           // idle checks since the last release
}

// due reports whether memory should be returned now, given what the process has
// used and allocated so far.
func (d *idleDetector) due(cpu time.Duration, now heap) bool {
	used, lately, much := cpu-d.cpu, now.allocated-d.seen, max(minAllocated, now.live/liveShare)
	d.cpu, d.seen = cpu, now.allocated
	if now.allocated-d.heap.allocated > much {
		d.pause = 0
	}
	if lately > much || used > time.Duration(idleShare*float64(idleInterval)*float64(1+now.live/idleHeap)) {
		return false
	}
	if d.pause > 0 {
		if d.waited++; d.waited < d.pause || now.live < minHeld {
			return false
		}
	}
	d.pause, d.waited, d.heap = min(max(firstPause, 2*d.pause), maxPause), 0, now
	return true
}

func readHeap() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return heap{allocated: sample[0].Value.Uint64(), live: sample[1].Value.Uint64()}
}
