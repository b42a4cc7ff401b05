package policy

import (
	"cmp"
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
	ports  []portRange        // of rules for addresses, each once
	addrs  []*rule            // rules for addresses, in the order given
	n      int                // of all rules
}

// network is the rules for one prefix. Prefixes lie within one another or apart.
type network struct {
	prefix netip.Prefix
	rules  []*rule
	outer  *network // the smallest of those that it lies in; nil: it lies in none
}

// span is the addresses from first up to those of the next span, and the innermost network
// that they are in; nil: they are in none.
type span struct {
	first netip.Addr
	in    *network
}

func newSet(rules []*rule) set {
	s := set{n: len(rules), exact: map[string][]*rule{}, suffix: map[string][]*rule{}}
	for _, r := range rules {
		switch star := strings.LastIndexByte(r.glob, '*'); {
		case r.glob == "":
			s.addrs = append(s.addrs, r)
			s.ports = append(s.ports, r.portRange)
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
	slices.SortFunc(s.ports, func(a, b portRange) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
	s.ports = slices.Compact(s.ports)
	return s
}

// spansOf cuts the addresses where a network begins or ends.
func spansOf(rules []*rule) (spans []span) {
	sorted := slices.Clone(rules)
	slices.SortStableFunc(sorted, func(a, b *rule) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), a.prefix.Bits()-b.prefix.Bits())
	})
	networks := make([]network, 0, len(rules)) // never grows: it is pointed into
	var open *network                          // the innermost at the address that was reached
	emit := func(at netip.Addr) {
		if n := len(spans); n > 0 && spans[n-1].first == at {
			spans = spans[:n-1]
		}
		spans = append(spans, span{at, open})
	}
	shut := func() {
		next := last(open.prefix).Next()
		if open = open.outer; next.IsValid() {
			emit(next)
		}
	}
	for i, r := range sorted {
		for open != nil && !open.prefix.Contains(r.prefix.Addr()) {
			shut()
		}
		if open == nil || open.prefix != r.prefix {
			networks = append(networks, network{prefix: r.prefix, rules: sorted[i:i], outer: open})
			open = &networks[len(networks)-1]
			emit(r.prefix.Addr())
		}
		open.rules = sorted[i-len(open.rules) : i+1]
	}
	for open != nil {
		shut()
	}
	return spans
}

// rule returns a rule for the network, or for one that it lies in; nil: none is. The largest
// network comes first.
func (n *network) rule(port uint16) *rule {
	if n == nil {
		return nil
	}
	if r := n.outer.rule(port); r != nil {
		return r
	}
	return onPort(n.rules, port)
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
		if r.has(port) && matchGlob(r.glob, host) {
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
	return s.at(addr).rule(port)
}

// at returns the innermost network that the address is in; nil: it is in none.
func (s *set) at(addr netip.Addr) *network {
	i, found := slices.BinarySearchFunc(s.spans, addr, func(s span, addr netip.Addr) int { return s.first.Compare(addr) })
	if !found {
		i--
	}
	if i < 0 || s.spans[i].first.BitLen() != addr.BitLen() {
		return nil
	}
	return s.spans[i].in
}

// someAddr says whether a rule for addresses has the port.
func (s *set) someAddr(port uint16) bool {
	return slices.ContainsFunc(s.ports, func(p portRange) bool { return p.has(port) })
}

func onPort(rules []*rule, port uint16) *rule {
	for _, r := range rules {
		if r.has(port) {
			return r
		}
	}
	return nil
}
