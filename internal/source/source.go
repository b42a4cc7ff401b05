// Package source identifies where connections come from, by the part of an
// address that a client cannot choose freely. Whatever is counted, shared or
// remembered for each client uses it.
//
// Admission, accounts, limits on password guesses and the order of token
// reviews all use it.
package source

import (
	"net"
	"net/netip"
)

// Of returns the source that addr belongs to: an IPv4 address, or the /64 of an
// IPv6 address, since one host can use any address of it. All peers without an
// address, on unix sockets, are one source, the zero Prefix.
func Of(addr net.Addr) netip.Prefix {
	ip := ipOf(addr).Unmap().WithZone("")
	prefix, _ := ip.Prefix(min(ip.BitLen(), 64))
	return prefix
}

// ipOf returns the address, or the zero Addr if there is none.
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
