package reach

import (
	"testing"
	"time"

	"konnectivity/internal/peers"
)

// While a server is away, no second link is made to another one: it would stay for good.
func TestOneLinkToEachAddress(t *testing.T) {
	now := time.Now()
	p := peers.NewPlan(policy, now)
	p.List([]string{"there", "away"}, true)
	met := 0
	for range 20 {
		dials, _ := p.Next(now)
		for _, address := range dials {
			p.Done(address)
			if address == "away" {
				p.Failed(address, now)
			} else if met++; met == 1 {
				p.Met(address, "1", 0, false, now)
			}
		}
		now = now.Add(3 * time.Second)
	}
	if met != 1 {
		t.Errorf("dialed the server that is there %d times", met)
	}
}
