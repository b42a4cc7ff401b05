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
	within map[netip.Prefix][]*rule
	bits   []int       // of the prefixes in within, each length once, the shortest first
	ports  []portRange // of rules for addresses, each once
	addrs  []*rule     // rules for addresses, in the order given
	n      int         // of all rules
}

func newSet(rules []*rule) set {
	s := set{n: len(rules), exact: map[string][]*rule{}, suffix: map[string][]*rule{}, within: map[netip.Prefix][]*rule{}}
	for _, r := range rules {
		switch star := strings.LastIndexByte(r.glob, '*'); {
		case r.glob == "":
			s.addrs = append(s.addrs, r)
			s.within[r.prefix] = append(s.within[r.prefix], r)
			s.bits = append(s.bits, r.prefix.Bits())
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
	slices.Sort(s.bits)
	s.bits = slices.Compact(s.bits)
	slices.SortFunc(s.ports, func(a, b portRange) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
	s.ports = slices.Compact(s.ports)
	return s
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
	return s.inside(addr, 0, port)
}

// inside returns a rule for a network of at least that many bits that addr is in; nil: none
// is. The largest network comes first.
func (s *set) inside(addr netip.Addr, least int, port uint16) *rule {
	for _, bits := range s.bits {
		if bits > addr.BitLen() {
			break
		}
		if bits < least {
			continue
		}
		network, _ := addr.Prefix(bits) // no error: it has as many
		if r := onPort(s.within[network], port); r != nil {
			return r
		}
	}
	return nil
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
