package sidecar

import (
	"net"
	"net/netip"
	"slices"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// selfCheck has the sidecar's own addresses, to refuse connections to itself, which would
// loop. It does not change once the fronts serve.
type selfCheck struct{ own []netip.AddrPort }

func (s *selfCheck) add(ln net.Listener) {
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		own := a.AddrPort()
		s.own = append(s.own, netip.AddrPortFrom(own.Addr().Unmap(), own.Port()))
	}
}

// is reports whether to is an address of the sidecar. An unspecified address stands for
// every address of this machine.
func (s *selfCheck) is(to netip.AddrPort) bool {
	ip := to.Addr().Unmap()
	for _, own := range s.own {
		switch {
		case own.Port() != to.Port():
		case own.Addr() == ip, ip.IsUnspecified():
			return true
		case own.Addr().IsUnspecified() && front.IsOwn(ip):
			return true
		}
	}
	return false
}

// names reports whether address means this sidecar to its clients. Through the tunnel it
// would be another machine's, but clients reach local addresses without a proxy.
func (s *selfCheck) names(address string) bool {
	host, port, err := tunnel.SplitAddress(address)
	if err != nil {
		return false // the dialer reports the error
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return s.is(netip.AddrPortFrom(ip, port))
	}
	return tunnel.IsLocalhost(host) && slices.ContainsFunc(s.own, func(own netip.AddrPort) bool { return own.Port() == port })
}
