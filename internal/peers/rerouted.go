package peers

import (
	"context"
	"net/netip"

	"konnectivity/tunnel"
)

// Rerouter is a Session that can tell what changes of addresses or routes mean for it. way
// returns from which address another is reached now, or none.
type Rerouter interface {
	Rerouted(way func(to netip.Addr) (from netip.Addr))
}

// Rerouted is for a caller who knows that addresses or routes of this machine have changed.
// Each Rerouter is told. If the way to a server is another one, what failed by the one before, or is
// being tried, is tried again at once.
func (s *Set[A, S]) Rerouted() {
	s.mail.post(func() {
		ways := ways{}
		for _, m := range s.members {
			if one, tells := any(m.Session).(Rerouter); tells {
				one.Rerouted(ways.to)
			}
		}
		changed := false
		for key, target := range s.targets {
			changed = target.rerouted(ways.to(addressOf(key))) || changed
		}
		if changed {
			s.leave()
			s.way, s.leave = context.WithCancel(s.ctx)
			s.plan.Retry()
		}
	})
}

// addressOf returns the IP address in a key, or none: then a proxy knows the way.
func addressOf(key string) netip.Addr {
	at, _ := netip.ParseAddrPort(key)
	return at.Addr()
}

// target is an address that the Plan may have dialed.
type target[A any] struct {
	address A
	tried   bool
	way     netip.Addr // to it, as of the first attempt or the last Rerouted after it
}

// try notes an attempt.
func (t *target[A]) try(key string) {
	if !t.tried {
		t.tried, t.way = true, ways{}.to(addressOf(key))
	}
}

// rerouted notes the present way, and reports whether it is another one than attempts took.
func (t *target[A]) rerouted(way netip.Addr) bool {
	other := t.tried && way != t.way
	t.way = way
	return other
}

// ways are the addresses from which this machine reaches others: none where it cannot.
type ways map[netip.Addr]netip.Addr

// to asks the kernel, once for each address.
func (w ways) to(address netip.Addr) netip.Addr {
	from, known := w[address]
	if !known && address.IsValid() {
		from, _ = tunnel.OwnAddr(address)
		w[address] = from
	}
	return from
}
