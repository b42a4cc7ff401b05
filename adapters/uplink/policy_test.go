package uplink

import (
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
