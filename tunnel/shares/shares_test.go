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

func TestEveryGreedyClientGetsItsPart(t *testing.T) {
	for _, tc := range []struct{ max, clients int64 }{{3584, 1}, {3584, 2}, {3584, 3}, {3584, 10}, {3584, 100}, {64, 1}, {64, 7}, {1, 1}} {
		pool := NewPool(tc.max)
		all := clients(pool, int(tc.clients))
		fill(all...)
		for i, c := range all {
			testutil.AtLeast(t, c.Used(), tc.max/(tc.clients+1), "client %d of %d", i, tc.clients)
		}
		testutil.AtMost(t, pool.Used(), tc.max, "taken of all")
		testutil.AtLeast(t, tc.max-pool.Used(), tc.max/(Eagerness*tc.clients+1)-1, "what %d clients leave", tc.clients)
	}
}

// TestALateClientFindsRoom: whatever the others have taken before.
func TestALateClientFindsRoom(t *testing.T) {
	for _, hogs := range []int{1, 2, 10, 40} {
		pool := NewPool(3584)
		fill(clients(pool, hogs)...)
		free := pool.Max() - pool.Used()
		late := pool.Share()
		fill(late)
		testutil.AtLeast(t, late.Used(), max(1, free*3/4), "the late one's, with %d free after %d hogs", free, hogs)
	}
}

// TestItEvensOut: hogs whose takings end get them again only within what others
// leave.
func TestItEvensOut(t *testing.T) {
	pool := NewPool(3584)
	hog, late := pool.Share(), pool.Share()
	fill(hog)
	for range 20 {
		for range hog.Used() / 2 {
			hog.Give(1)
		}
		fill(late, hog)
	}
	testutil.AtLeast(t, late.Used(), pool.Max()/3, "what the late one has")
}
