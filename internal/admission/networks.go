package admission

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Networks is a set of addresses.
type Networks []netip.Prefix

// ParseNetworks reads CIDRs and single addresses.
func ParseNetworks(texts []string) (Networks, error) {
	var all Networks
	for _, text := range texts {
		p, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a CIDR, such as 10.0.0.0/8 or 2001:db8::/32", text)
		}
		all = append(all, p)
	}
	return all, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return addr.Prefix(addr.BitLen())
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() {
		return p.Addr().Unmap().Prefix(p.Bits() - 96)
	}
	return p.Masked(), err
}

// Contains reports whether addr is in one of the networks.
func (n Networks) Contains(addr net.Addr) bool {
	ip := ipOf(addr).Unmap().WithZone("")
	return slices.ContainsFunc(n, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// HasAll reports whether one of the networks is all of an address family.
func (n Networks) HasAll() bool {
	return slices.ContainsFunc(n, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// SourceOf returns the source that addr belongs to: the part of the address that a
// client cannot choose freely, which is an IPv4 address, or the /64 of an IPv6 address.
// All peers without an address, on unix sockets, are one source, the zero Prefix.
func SourceOf(addr net.Addr) netip.Prefix {
	ip := ipOf(addr).Unmap().WithZone("")
	prefix, _ := ip.Prefix(min(ip.BitLen(), 64))
	return prefix
}

// ipOf returns the IP address of addr, or the zero Addr if there is none.
func ipOf(addr net.Addr) netip.Addr {
	switch a := addr.(type) {
	case nil:
		return netip.Addr{}
	case *net.TCPAddr: // the usual case, which needs no formatting and parsing
		return a.AddrPort().Addr()
	default:
		at, _ := netip.ParseAddrPort(a.String())
		return at.Addr()
	}
}
