package routes

import (
	"iter"
	"net/netip"
	"slices"
)

// Lengths are the lengths of the prefixes among some keys, the longest first, so that a
// look-up tries no others. The zero value has none.
type Lengths []length

// length is how many prefixes have so many bits.
type length struct {
	bits uint8
	n    int
}

// Count adds so many times a key, which counts if it is a Prefix.
func (all *Lengths) Count(k Key, by int) {
	if k.Kind != Prefix {
		return
	}
	at, found := slices.BinarySearchFunc(*all, k.Bits, func(l length, bits uint8) int { return int(bits) - int(l.bits) })
	if !found {
		*all = slices.Insert(*all, at, length{bits: k.Bits})
	}
	if (*all)[at].n += by; (*all)[at].n == 0 {
		*all = slices.Delete(*all, at, at+1)
	}
}

// Keys are those of the prefixes of these lengths that have an address, of more than least
// bits, the longest first. A zone is ignored; an invalid address yields nothing.
func (all Lengths) Keys(addr netip.Addr, least int) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		if !addr.IsValid() {
			return
		}
		if addr.Is4() {
			least = max(least, 95) // a shorter prefix is one of IPv6
		}
		wide := netip.AddrFrom16(addr.As16())
		for _, l := range all {
			if int(l.bits) <= least {
				return
			}
			if p, _ := wide.Prefix(int(l.bits)); !yield(Key{Prefix, l.bits, p.Addr().As16()}) {
				return
			}
		}
	}
}
