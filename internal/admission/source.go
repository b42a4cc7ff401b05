package admission

import (
	"net"
	"net/netip"
)

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
