package policy

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"konnectivity/internal/testutil"
)

// ordinary is a policy as operators write it.
func ordinary(t testing.TB) *Policy {
	return mustParse(t,
		[]string{"10.0.0.0/8:443", "*.svc.cluster.local:1-65535", "kubernetes.default.svc", "[2001:db8::/32]:443"},
		[]string{"10.1.2.3", "*.internal.example", "192.168.0.0/16"})
}

// checks are allowed, so none makes an error.
var checks = map[string]func(p *Policy) error{
	"address":    func(p *Policy) error { return p.AllowAddr(netip.MustParseAddrPort("10.9.8.7:443")) },
	"address-v6": func(p *Policy) error { return p.AllowAddr(netip.MustParseAddrPort("[2001:db8::1]:443")) },
	"host":       func(p *Policy) error { return p.AllowHost("api.svc.cluster.local", 443) },
	"literal":    func(p *Policy) error { return p.AllowHost("10.9.8.7", 443) },
	"unresolved": func(p *Policy) error { return p.AllowUnresolved("api.svc.cluster.local", 443) },
	"resolved": func(p *Policy) error {
		return p.AllowResolved("api.svc.cluster.local", netip.MustParseAddrPort("10.9.8.7:443"))
	},
}

func BenchmarkAllow(b *testing.B) { benchmark(b, ordinary(b), checks) }

func benchmark(b *testing.B, p *Policy, checks map[string]func(p *Policy) error) {
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		check := checks[name]
		b.Run("what="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				testutil.NoError(b, check(p))
			}
		})
	}
}

// Every dial is checked at least twice; what is allowed must cost next to
// nothing.
func TestAllowAllocatesNothing(t *testing.T) {
	allocateNothing(t, ordinary(t), checks)
	allocateNothing(t, many(t), manyChecks)
	allocateNothing(t, nil, map[string]func(p *Policy) error{"no rules": checks["address"]})
}

func allocateNothing(t *testing.T, p *Policy, checks map[string]func(p *Policy) error) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			testutil.MaxAllocs(t, 0, func() { testutil.NoError(t, check(p)) })
		})
	}
}
