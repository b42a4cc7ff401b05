// Package source tells where connections come from, as far as whoever makes
// them cannot choose it freely: what is counted, shared or remembered by client
// goes by that.
package source

import (
	"net"
	"net/netip"
)

// Of is the place that addr belongs to: an IPv4 address, or the /64 of an IPv6
// address, since one host has as many addresses of that as it likes. All that
// come without an address, by unix socket, are of one place, the zero Prefix.
func Of(addr net.Addr) netip.Prefix {
	ip := ipOf(addr).Unmap().WithZone("")
	prefix, _ := ip.Prefix(min(ip.BitLen(), 64))
	return prefix
}

// ipOf is the zero Addr where there is none.
func ipOf(addr net.Addr) netip.Addr {
	switch a := addr.(type) {
	case nil:
		return netip.Addr{}
	case *net.TCPAddr: // what nearly all are: no need to spell and parse it
		return a.AddrPort().Addr()
	default:
		at, _ := netip.ParseAddrPort(a.String())
		return at.Addr()
	}
}
