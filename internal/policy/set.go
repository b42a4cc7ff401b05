package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// set is rules in a form in which many are searched about as quickly as few. Only globs
// with a star elsewhere than in front of a dot are compared one by one.
type set struct {
	every  []*rule            // "*": all destinations
	exact  map[string][]*rule // by name
	suffix map[string][]*rule // "*.example.com" by ".example.com"
	globs  []*rule            // all others
	spans  []span             // addresses, in order
	ports  []rule             // the distinct ports of rules for addresses; of these rules nothing else counts
	addrs  []*rule            // rules for addresses, in the order given
	n      int                // of all rules
}

// span is the addresses from first up to those of the next span, and the rules for them.
type span struct {
	first netip.Addr
	rules []*rule
}

func newSet(rules []*rule) set {
	s := set{n: len(rules), exact: map[string][]*rule{}, suffix: map[string][]*rule{}}
	for _, r := range rules {
		switch star := strings.LastIndexByte(r.glob, '*'); {
		case r.glob == "":
			s.addrs = append(s.addrs, r)
			if ports := (rule{first: r.first, last: r.last}); !slices.Contains(s.ports, ports) {
				s.ports = append(s.ports, ports)
			}
		case r.glob == "*":
			s.every = append(s.every, r)
		case star < 0:
			s.exact[r.glob] = append(s.exact[r.glob], r)
		case star == 0 && r.glob[1] == '.':
			s.suffix[r.glob[1:]] = append(s.suffix[r.glob[1:]], r)
		default:
			s.globs = append(s.globs, r)
		}
	}
	s.spans = spansOf(s.addrs)
	return s
}

// spansOf cuts the addresses where a rule begins or ends. Prefixes lie within one another
// or apart, so that those that are open at an address are a stack.
func spansOf(rules []*rule) (spans []span) {
	sorted := slices.Clone(rules)
	slices.SortStableFunc(sorted, func(a, b *rule) int {
		if c := a.prefix.Addr().Compare(b.prefix.Addr()); c != 0 {
			return c
		}
		return a.prefix.Bits() - b.prefix.Bits()
	})
	var open []*rule
	emit := func(at netip.Addr) {
		if n := len(spans); n > 0 && spans[n-1].first == at {
			spans = spans[:n-1]
		}
		spans = append(spans, span{at, slices.Clone(open)})
	}
	shut := func() { // the innermost
		end := last(open[len(open)-1].prefix)
		open = open[:len(open)-1]
		if next := end.Next(); next.IsValid() {
			emit(next)
		}
	}
	for _, r := range sorted {
		for len(open) > 0 && !open[len(open)-1].prefix.Contains(r.prefix.Addr()) {
			shut()
		}
		open = append(open, r)
		emit(r.prefix.Addr())
	}
	for len(open) > 0 {
		shut()
	}
	return spans
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// host returns a rule for a name; nil: none is.
func (s *set) host(host string, port uint16) *rule {
	if s.n == 0 {
		return nil
	}
	host = fold(host)
	if r := onPort(s.every, port); r != nil {
		return r
	}
	if r := onPort(s.exact[host], port); r != nil {
		return r
	}
	if len(s.suffix) > 0 {
		for i := range len(host) {
			if host[i] == '.' {
				if r := onPort(s.suffix[host[i:]], port); r != nil {
					return r
				}
			}
		}
	}
	for _, r := range s.globs {
		if r.matchesPort(port) && matchGlob(r.glob, host) {
			return r
		}
	}
	return nil
}

// addr returns a rule for an address as plain returns it; nil: none is.
func (s *set) addr(addr netip.Addr, port uint16) *rule {
	if r := onPort(s.every, port); r != nil {
		return r
	}
	return onPort(s.at(addr), port)
}

// weight is how much memory the set takes, in units of some 100 bytes. Each span has a list of
// all rules whose networks it lies in.
func (s *set) weight() int {
	pointers := 0
	for _, at := range s.spans {
		pointers += len(at.rules)
	}
	return s.n + pointers/12
}

// at returns the rules that name the address or a network of it.
func (s *set) at(addr netip.Addr) []*rule {
	i, found := slices.BinarySearchFunc(s.spans, addr, func(s span, addr netip.Addr) int { return s.first.Compare(addr) })
	if !found {
		i--
	}
	if i < 0 || s.spans[i].first.BitLen() != addr.BitLen() {
		return nil
	}
	return s.spans[i].rules
}

// someAddr says whether a rule for addresses has the port.
func (s *set) someAddr(port uint16) bool {
	return slices.ContainsFunc(s.ports, func(r rule) bool { return r.matchesPort(port) })
}

func onPort(rules []*rule, port uint16) *rule {
	for _, r := range rules {
		if r.matchesPort(port) {
			return r
		}
	}
	return nil
}
