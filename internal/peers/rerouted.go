package peers

import (
	"net/netip"

	"konnectivity/tunnel"
)

// Rerouter is a Session that can tell what changes of addresses or routes mean for it.
type Rerouter interface{ Rerouted() }

// Rerouted is for a caller who knows that addresses or routes of this machine have changed.
// Each Rerouter is told. If the way to a server is another one, what failed by the one before is
// tried again at once.
func (s *Set[A, S]) Rerouted() {
	s.mail.post(func() {
		for _, m := range s.members {
			if one, tells := any(m.Session).(Rerouter); tells {
				one.Rerouted()
			}
		}
		ways := map[string]netip.Addr{}
		for key := range s.addresses {
			ways[key] = way(key)
			if ways[key] != s.ways[key] {
				s.plan.Retry()
			}
		}
		s.ways = ways
	})
}

// way is the address from which this machine would connect to another; none where it cannot, or
// where a proxy would.
func way(address string) (from netip.Addr) {
	if to, err := netip.ParseAddrPort(address); err == nil {
		from, _ = tunnel.OwnAddr(to.Addr())
	}
	return from
}
