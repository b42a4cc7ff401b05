package shares

import (
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// fill takes for each client in turn until nobody gets any more.
func fill(clients ...*Share) {
	for more := true; more; {
		more = false
		for _, c := range clients {
			more = c.Take(1) || more
		}
	}
}

func clients(p *Pool, n int) []*Share {
	out := make([]*Share, n)
	for i := range out {
		out[i] = p.Share()
	}
	return out
}
