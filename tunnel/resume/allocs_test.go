package resume_test

import (
	"io"
	"runtime"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// allocs is how often memory is allocated in all for a message of that size to
// reach an agent's end and come back, by way of a server.
func allocs(t *testing.T, window time.Duration, size int) float64 {
	accepted := make(grab, 1)
	w := &world{t: t, serve: accepted}
	w.begin(1, window)
	c := testutil.Must(w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
	far := <-accepted
	defer far.Close()
	defer c.Close()
	go func() { _, _ = io.Copy(far, far) }()
	message, answer := make([]byte, size), make([]byte, size)
	exchange := func() {
		testutil.NoError(t, testutil.Err(c.Write(message)))
		testutil.NoError(t, testutil.Err(io.ReadFull(c, answer)))
	}
	for range 100 {
		exchange()
	}
	const rounds = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		exchange()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / rounds
}

// To outlive links costs few allocations, for small messages and for bulk. Positions are
// acknowledged by the clock, too: a busy machine, or the race detector, has more of these.
func TestAllocations(t *testing.T) {
	if !testutil.ExactMemory {
		t.Skip("the race detector allocates, too")
	}
	for size, more := range map[int]float64{100: 1, 64 << 10: 40} {
		var plain, lasting float64
		for range 10 { // how bulk is cut into frames varies
			plain, lasting = allocs(t, 0, size), allocs(t, time.Minute, size)
			t.Logf("%d bytes: %.1f allocations plain, %.1f lasting", size, plain, lasting)
			if lasting <= plain+more {
				break
			}
		}
		testutil.Holds(t, lasting <= plain+more,
			"%d bytes there and back cost %.1f allocations, and %.1f where nothing outlives its link", size, lasting, plain)
	}
}
