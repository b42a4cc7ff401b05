package uplink

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/internal/testutil"
)

// The only address of several servers gets two links, whatever one of the
// servers knows and however many links go to addresses that are gone.
func TestTwoLinksToTheOnlyAddress(t *testing.T) {
	now := time.Now()
	p := peers.NewPlan(policy(0, ""), now)
	p.List([]string{"gone", "only"}, true)
	p.Next(now)
	for _, at := range []string{"gone", "only"} {
		p.Done(at)
		p.Met(at, at, 3, false, now)
	}
	p.List([]string{"only"}, true)
	dial, _ := p.Next(now.Add(time.Second))
	testutil.EqualSlices(t, dial, []string{"only"}, "dials beside a link to an address that is gone")
	p.Done("only")
	p.Met("only", "modest", 1, false, now)
	testutil.Equal(t, p.Want(), maxPerAddress, "links where one of the servers knows of no other")
}

// Names are looked up sooner only where that has failed and a server is missing.
func TestLookUpsAreSeldom(t *testing.T) {
	for range 100 {
		for _, complete := range []bool{false, true} {
			testutil.AtLeast(t, resolveEvery(complete, nil), refreshEvery, "the pause behind an answer")
		}
		testutil.AtLeast(t, resolveEvery(true, context.DeadlineExceeded), refreshEvery, "the pause behind a failure, where no server is missing")
		testutil.AtMost(t, resolveEvery(false, context.DeadlineExceeded), maxPause, "the pause behind a failure, where one is")
	}
}
