package race

import (
	"net"
	"net/netip"
)

// Routed says whether this machine has a route to an address, and one of its own to send from. It
// sends nothing.
func Routed(to netip.Addr) bool {
	const discard = 9 // any port
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
