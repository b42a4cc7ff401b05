package registry

import (
	"fmt"
	"testing"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// crowd is a registry of n agents with an address and two networks each, under
// load that differs.
func crowd(t testing.TB, n int) *Registry {
	strategies := testutil.Must(ParseStrategies("destHost,destCIDR,defaultRoute,default"))(t)
	r := New(nil, strategies, logging.Silent())
	for i := range n {
		ids := testutil.Must(ParseIdentifiers(fmt.Sprintf("ipv4=10.%d.%d.1&cidr=10.%d.%d.0/24&cidr=fd00:%x::/64", i/250, i%250, i/250, i%250, i)))(t)
		f := newFake("x")
		f.streams.Store(int64(i % 17))
		joined := r.Join(Agent{ID: fmt.Sprint(i), Identifiers: ids}, f)
		t.Cleanup(func() { joined.Leave() })
	}
	return r
}

// destinations are found by one strategy each.
var destinations = []struct{ strategy, host string }{
	{"destHost", "10.0.7.1"}, {"destCIDR", "10.0.7.9"}, {"destCIDR-v6", "fd00:7::9"}, {"default", "a.name.example"},
}

// BenchmarkPick must stay below 1 µs with 5,000 agents.
func BenchmarkPick(b *testing.B) {
	for _, agents := range []int{1, 100, 5000} {
		r := crowd(b, agents)
		for _, d := range destinations {
			b.Run(fmt.Sprintf("agents=%d/strategy=%s", agents, d.strategy), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c, _, _ := r.pick(d.host, &none)
					testutil.Requires(b, c != nil, "nobody")
				}
			})
		}
	}
}

var none tries

func TestPickAllocatesNothing(t *testing.T) {
	r := crowd(t, 1000)
	for _, d := range destinations {
		t.Run(d.strategy, func(t *testing.T) {
			testutil.MaxAllocs(t, 0, func() { r.pick(d.host, &none) })
		})
	}
}
