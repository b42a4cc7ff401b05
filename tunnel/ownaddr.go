package tunnel

import (
	"net"
	"net/netip"
)

// OwnAddr is the address from which this machine would send to another one now. It sends nothing.
func OwnAddr(to netip.Addr) (netip.Addr, error) {
	const discard = 9 // any port
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
