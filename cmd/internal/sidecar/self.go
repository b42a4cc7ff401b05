package sidecar

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"konnectivity/tunnel"
)

// selfCheck knows the sidecar's own addresses, so that a connection to itself,
// which would go in circles, can be refused. It does not change once the fronts
// serve.
type selfCheck struct{ own []netip.AddrPort }

func (s *selfCheck) add(ln net.Listener) {
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		own := a.AddrPort()
		s.own = append(s.own, netip.AddrPortFrom(own.Addr().Unmap(), own.Port()))
	}
}

// is says whether to is one of ours. An unspecified address reaches, or is
// reached by, every address of this machine.
func (s *selfCheck) is(to netip.AddrPort) bool {
	ip := to.Addr().Unmap()
	for _, own := range s.own {
		switch {
		case own.Port() != to.Port():
		case own.Addr() == ip, ip.IsUnspecified():
			return true
		case own.Addr().IsUnspecified() && isLocal(ip):
			return true
		}
	}
	return false
}

// names says whether a client that asks for address means this sidecar. What
// it can reach there by itself needs no proxy, so this holds for the tunnel as
// well, at whose other end the same address would be another machine's.
func (s *selfCheck) names(address string) bool {
	host, port, err := tunnel.SplitAddress(address)
	if err != nil {
		return false // whoever dials says what is wrong with it
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return s.is(netip.AddrPortFrom(ip, port))
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	local := host == "localhost" || strings.HasSuffix(host, ".localhost") // RFC 6761 §6.3
	return local && slices.ContainsFunc(s.own, func(own netip.AddrPort) bool { return own.Port() == port })
}

// isLocal says whether this machine has ip.
func isLocal(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	addrs, _ := net.InterfaceAddrs() // without them, ip is taken for another's
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip.WithZone("") {
			return true
		}
	}
	return false
}
