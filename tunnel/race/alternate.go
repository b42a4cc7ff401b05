package race

import "net/netip"

// Alternate orders addresses as RFC 8305 §4 asks: the family of the resolver's
// first choice first, then in turn, so that a family without a route costs one
// stagger and not one for each of its addresses, nor all of Dial's tries. Doubles
// are dropped.
func Alternate(found []netip.Addr) []netip.Addr {
	var lists [2][]netip.Addr // the first choice's family, and the other
	seen := make(map[netip.Addr]bool, len(found))
	for _, addr := range found {
		addr = addr.Unmap()
		if seen[addr] {
			continue
		}
		seen[addr] = true
		which := 0
		if addr.Is4() != found[0].Unmap().Is4() {
			which = 1
		}
		lists[which] = append(lists[which], addr)
	}
	ordered := make([]netip.Addr, 0, len(seen))
	for i := range max(len(lists[0]), len(lists[1])) {
		for _, list := range lists {
			if i < len(list) {
				ordered = append(ordered, list[i])
			}
		}
	}
	return ordered
}
