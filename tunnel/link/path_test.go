package link

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A path has small segments for an hour once large ones were lost, and large ones again
// where small ones are lost, too.
func TestPathIsNarrowForAWhile(t *testing.T) {
	var p Path
	now := time.Now()
	testutil.Equal(t, p.narrow(now), false, "narrow at first")
	p.unheard(narrowSegment+1, now)
	testutil.Equal(t, p.narrow(now.Add(narrowFor-2*time.Second)), true, "narrow once large segments were lost")
	testutil.Equal(t, p.narrow(now.Add(narrowFor)), false, "narrow an hour later")
	for _, by := range []time.Duration{-2 * narrowFor, 2 * narrowFor} {
		testutil.Equal(t, p.narrow(testutil.SetClock(now, by)), true, "narrow though the clock was set by %v", by)
	}
	p.unheard(narrowSegment, now)
	testutil.Equal(t, p.narrow(now), false, "narrow once small segments were lost, too")
}
