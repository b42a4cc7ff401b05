package shares

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"konnectivity/internal/testutil"
)

// divided returns as many clients of each of some shares of p as counts says.
func divided(p *Pool, counts ...int) (tenants []*Pool, all []*Share) {
	for _, n := range counts {
		t := p.Share()
		tenants = append(tenants, t)
		all = append(all, clients(t, n)...)
	}
	return tenants, all
}

// TestClientsDoNotGainByBeingMany: shares that are wanted whole come to equal
// parts as what was taken ends, within the ninth that one with a single client
// leaves for another of its own.
func TestClientsDoNotGainByBeingMany(t *testing.T) {
	const most = 1 << 16
	testutil.EachOf(t, [][]int{{1}, {300}, {1, 1}, {1, 300}, {1, 10, 100}, {100, 100, 1}, slices.Repeat([]int{1, 20}, 5)}, func(t *testing.T, counts []int) {
		r := rand.New(rand.NewPCG(1, 2))
		pool := NewPool(most)
		tenants, all := divided(pool, counts...)
		for range 1000 {
			fillBy(8, all...)
			for range len(all)/20 + 1 { // of those with many clients more end, and more are asked for
				if c := all[r.IntN(len(all))]; c.Used() > 0 {
					c.Give(8)
				}
			}
		}
		fillBy(8, all...)
		var parts []int64
		for _, p := range tenants {
			parts = append(parts, p.Used())
		}
		testutil.AtMost(t, float64(slices.Max(parts)), 1.2*float64(slices.Min(parts)), "the largest part")
		n := int64(len(counts))
		testutil.AtLeast(t, slices.Min(parts), most/(n+1)*8/9, "the least part")
		testutil.AtMost(t, pool.Used(), most*8*n/(8*n+1)+8, "what all have")
		testutil.Equal(t, pool.Share().Share().Take(8), true, "there is room for one more")
		testutil.Equal(t, counts[0] != 1 || tenants[0].Share().Take(8), true, "there is room for one more client")
	})
}

// fillBy is fill, n at a time.
func fillBy(n int64, clients ...*Share) {
	for more := true; more; {
		more = false
		for _, c := range clients {
			more = c.Take(n) || more
		}
	}
}

// TestABoundHolds, whatever is free, may change, and leaves others what they had.
func TestABoundHolds(t *testing.T) {
	pool := NewPool(9000)
	tenants, all := divided(pool, 1, 3)
	part := tenants[1]
	part.Bound(100)
	testutil.Equal(t, tenants[1].Max(), 100, "the bound of one")
	testutil.Equal(t, tenants[0].Max(), 9000, "and of another")
	fill(all...)
	testutil.Between(t, tenants[1].Used(), 90, 100, "bytes taken within a bound of 100")
	testutil.AtLeast(t, all[0].Used(), 9000*3/4, "what the other has")
	testutil.Equal(t, all[1].Take(200), false, "200 more are taken within a bound of 100")
	part.Bound(0)
	fill(all...)
	testutil.AtLeast(t, tenants[1].Used(), 101, "bytes taken without a bound")
	part.Bound(50)
	takes := all[1].Within(1) || all[1].Take(1) || all[1].Left() >= 0
	testutil.Equal(t, takes, false, "what has more than its new bound takes more")
	late := pool.Share()
	testutil.Equal(t, late.Within(1) && late.Take(1), true, "another takes one")
}

// TestLargestHolderFeelsScarcityFirst: of a share's parts that which has most, then all,
// and other shares not at all. Who has next to nothing keeps what it has as long
// as anything does.
func TestLargestHolderFeelsScarcityFirst(t *testing.T) {
	for _, times := range []int64{1, 3, Eagerness} {
		pool := NewPool(1 << 20)
		_, all := divided(pool, 2, 1)
		hog, small, other := all[0], all[1], all[2]
		small.Add(100)
		other.Add(100)
		for hog.Within(times) {
			testutil.Requires(t, small.Within(times),
				"%d times: the small one feels it first, at %d", times, hog.Used())
			hog.Add(100)
		}
		testutil.Holds(t, small.Within(times) && (hog.Cut(1000) == 1000 || times >= Eagerness),
			"%d times: at %d the small one of the same share feels it as well", times, hog.Used())
		for small.Within(times) {
			hog.Add(100)
		}
		feels := !other.Within(times) || other.Left() <= 0
		testutil.Equal(t, feels, false, "another feels it, %d times, at %d", times, hog.Used())
	}
	pool := NewPool(1 << 20)
	_, all := divided(pool, 2, 1)
	hog, small, other := all[0], all[1], all[2]
	small.Add(100)
	last := int64(1000)
	for ; pool.Used() < pool.Max()-200; hog.Add(100) {
		cut := hog.Cut(1000)
		testutil.Requires(t, cut <= last,
			"with %d it is to keep %d of 1000, and %d before", hog.Used(), cut, last)
		if last = cut; small.Cut(1000) < cut || other.Cut(1000) != 1000 {
			t.Fatalf("the small one is to keep %d of 1000, the hog %d, the other %d", small.Cut(1000), cut, other.Cut(1000))
		}
	}
	hog.Add(200)
	testutil.Equal(t, hog.Cut(1000)+small.Cut(1000)+other.Cut(1000), 0, "what they keep with nothing free")
}

// model is the rule with plain numbers.
type model struct {
	max     int64
	bounds  []int64
	clients [][]int64
}

func sum(of []int64) (n int64) {
	for _, v := range of {
		n += v
	}
	return n
}

func (m *model) all() (n int64) {
	for _, c := range m.clients {
		n += sum(c)
	}
	return n
}

// limits is what a tenant may have, and each of its clients.
func (m *model) limits(tenant int) (whole, each int64) {
	whole = 8 * (m.max - m.all())
	if m.bounds[tenant] > 0 {
		whole = min(whole, m.bounds[tenant])
	}
	return whole, 8 * max(whole-sum(m.clients[tenant]), whole/1024)
}

func (m *model) may(tenant, client int, n int64) bool {
	whole, each := m.limits(tenant)
	used := sum(m.clients[tenant])
	return m.all()+n <= m.max && used < whole && m.clients[tenant][client] < each &&
		(m.bounds[tenant] == 0 || used+n <= m.bounds[tenant])
}

// TestSharesDoAsTheModel: takings, gifts and bounds at random have the outcome of
// the rule, and nothing is lost.
func TestSharesDoAsTheModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 16))
		m := &model{max: 1 + r.Int64N(5000)}
		pool := NewPool(m.max)
		var tenants []*Pool
		var shares [][]*Share
		for range 1 + r.IntN(6) {
			p := pool.Share()
			n := 1 + r.IntN(6)
			tenants, shares = append(tenants, p), append(shares, clients(p, n))
			m.bounds, m.clients = append(m.bounds, 0), append(m.clients, make([]int64, n))
		}
		for step := range 500 {
			i := r.IntN(len(tenants))
			c := r.IntN(len(shares[i]))
			has := m.clients[i][c]
			switch r.IntN(8) {
			case 0:
				m.bounds[i] = r.Int64N(m.max) * r.Int64N(2)
				tenants[i].Bound(m.bounds[i])
			case 1:
				n := r.Int64N(has + 1)
				shares[i][c].Give(n)
				m.clients[i][c] -= n
			case 2:
				n := r.Int64N(20)
				shares[i][c].Add(n)
				m.clients[i][c] += n
			default:
				n := 1 + r.Int64N(1+m.max/10)
				want := m.may(i, c, n)
				got := shares[i][c].Take(n)
				testutil.Requires(t, got == want, "seed %d, step %d: taking %d of %v: %v, by the rule %v", seed, step, n, m, got, want)
				if want {
					m.clients[i][c] += n
				}
			}
			whole, each := m.limits(i)
			used, own := sum(m.clients[i]), m.clients[i][c]
			if within := used < whole && own < each; shares[i][c].Within(8) != within {
				t.Fatalf("seed %d, step %d: within its share: %v, by the rule %v", seed, step, !within, within)
			}
			testutil.Requires(t, pool.Used() == m.all() && tenants[i].Used() == used && shares[i][c].Used() == own,
				"seed %d, step %d: %d, %d and %d are taken, in truth %v", seed, step, pool.Used(), tenants[i].Used(), shares[i][c].Used(), m)
		}
	}
}

// TestPartsAreTakenAtTheSameTime, and all is given back.
func TestPartsAreTakenAtTheSameTime(t *testing.T) {
	pool := NewPool(100)
	tenants, all := divided(pool, 4, 4)
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for range 500 {
				if c.Take(1) {
					testutil.AtMost(t, pool.Used(), 100+8, "taken of 100")
					c.Give(1)
				}
			}
		})
	}
	wg.Wait()
	testutil.Equal(t, [3]int64{pool.Used(), tenants[0].Used(), tenants[1].Used()}, [3]int64{}, "what is still taken")
}
