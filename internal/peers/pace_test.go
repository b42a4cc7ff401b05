package peers

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// Each hit on a server that is connected already costs at most 100 ms, as long
// as a search of usual length takes.
func TestDuplicatesAreCheap(t *testing.T) {
	const limit = 10 * time.Second
	for want := 1; want <= 6; want++ {
		p := pace{Backoff: Backoff{Base: time.Second, Limit: limit, Growth: 1.5}}
		p.hope(want)
		for i := range 2 * want {
			d := p.duplicate()
			testutil.Requires(t, d <= 100*time.Millisecond, "duplicate %d of a search for %d costs %v", i+1, want, d)
		}
		for range 1000 {
			d := p.duplicate()
			testutil.Requires(t, d <= limit, "a pause of %v", d)
		}
	}
}

// The allowance gives its burst, then one at a time, and fills up again.
func TestAllowance(t *testing.T) {
	var a allowance
	now := time.Now()
	took := func() (n int) {
		for ok, _ := a.take(now, SearchBurst, searchEvery); ok; ok, _ = a.take(now, SearchBurst, searchEvery) {
			n++
		}
		return n
	}
	testutil.Equal(t, took(), SearchBurst, "at first")
	_, next := a.take(now, SearchBurst, searchEvery)
	wait := next.Sub(now)
	testutil.Holds(t, wait > 0 && wait <= searchEvery, "the next one in %v", wait)
	now = next
	testutil.Equal(t, took(), 1, "after %v", searchEvery)
	now = now.Add(10 * searchEvery)
	testutil.Equal(t, took(), 10, "after ten times as long")
	now = now.Add(10 * SearchBurst * searchEvery)
	testutil.Equal(t, took(), SearchBurst, "after a long rest")
}

// Paces are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const operations = "../../docs/operations.md"
	testutil.Says(t, operations, "A link that lasted for %v ms or more", goodLife.Milliseconds())
	testutil.Says(t, operations, "and once more every %v s. Beyond", int64(lossEvery/time.Second))
	testutil.Says(t, operations, "an agent makes at most %v attempts at once", SearchBurst)
	testutil.Says(t, operations, "and up to %v s where the sidecar has lost or made a link", int64(newsTime/time.Second))
	testutil.Says(t, operations, "name %v s, and twice as long each time, up to %v s", int64(lookUpTime/time.Second), int64(maxLookUpTime/time.Second))
	testutil.Says(t, "../../docs/link-protocol.md", "Nor does it end by that for %v s after", int64(newsTime/time.Second))
}
