package race

import (
	"net"
	"net/netip"

	"konnectivity/tunnel"
)

// Routed says whether this machine has a route to an address, and one of its own to send from. It
// sends nothing. Without a descriptor to ask with, it says that there is one.
func Routed(to netip.Addr) bool {
	const discard = 9 // any port
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
	if err != nil {
		return tunnel.FailureOf(err) == tunnel.FailExhausted
	}
	_ = conn.Close()
	return true
}
