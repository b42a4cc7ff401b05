package resources

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

func TestIdleDetector(t *testing.T) {
	const busy, quiet = time.Second, time.Millisecond
	var d idleDetector
	var cpu time.Duration
	var now heap
	for i, step := range []struct {
		used        time.Duration
		bytes, live uint64
		want        bool
	}{
		{busy, 10 << 20, 0, false}, // never in the middle of work
		{quiet, 0, 0, true},
		{quiet, 0, 0, false}, // enough
		{quiet, 1000, 0, false},
		{quiet, 2 << 20, 0, false}, // something happens
		{quiet, 1000, 0, true},     // something happened
		{busy, 2 << 20, 0, false},
		{quiet, 0, 0, true},
		{quiet, 10 << 20, 80 << 20, false}, // little, beside what there is
		{quiet, 11 << 20, 80 << 20, true},
		{quiet, 0, 80 << 20, false},
		{busy, 10 << 20, 40 << 20, false}, // more than the pings of what it holds
		{busy, 11 << 20, 80 << 20, true},
		{2 * busy, 20 << 20, 80 << 20, false},
	} {
		cpu += step.used
		now.allocated += step.bytes
		now.live = step.live
		testutil.Equal(t, d.due(cpu, now), step.want, "step %d: due", i)
	}
}

// What connections held is garbage once they end, which allocates nothing: a process
// that held much looks again, after 10 s and then after twice as long each time.
func TestIdleProcessReleasesWhatEnded(t *testing.T) {
	for live, want := range map[uint64][]int{80 << 20: {0, 2, 6, 14, 30, 54, 78, 102}, 1 << 20: {0}} {
		d := idleDetector{seen: 100 << 20}
		var got []int
		for check := range int(10 * time.Minute / idleInterval) {
			if d.due(0, heap{allocated: 100 << 20, live: live}) {
				got = append(got, check)
			}
		}
		testutil.EqualSlices(t, got, want, "with %d bytes live it releases at the checks", live)
	}
}

// A pooled block is freed by one release, not by the next.
func TestReleaseEmptiesPools(t *testing.T) {
	var pool sync.Pool
	freed := make(chan struct{})
	func() {
		block := new([64 << 10]byte)
		runtime.AddCleanup(block, func(freed chan struct{}) { close(freed) }, freed)
		pool.Put(block)
	}()
	release()
	select {
	case <-freed:
	case <-time.After(time.Minute):
		t.Error("a block that was pooled is still held")
	}
	runtime.KeepAlive(&pool)
}

func TestReleaseIdleEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ReleaseIdle(ctx)
}

func TestReadHeap(t *testing.T) {
	before := readHeap()
	sink = make([]byte, 1<<20)
	testutil.AtLeast(t, readHeap().allocated-before.allocated, 1<<20, "bytes that count as allocated")
}

var sink []byte
