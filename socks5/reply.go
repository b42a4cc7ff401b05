package socks5

import (
	"encoding/binary"
	"net"
	"net/netip"

	"konnectivity/tunnel"
)

// Replies of RFC 1928 §6.
const (
	replySucceeded   = 0
	replyGeneral     = 1
	replyNotAllowed  = 2
	replyNetUnreach  = 3
	replyHostUnreach = 4
	replyRefused     = 5
	replyTTLExpired  = 6
	replyCommand     = 7
	replyAddressType = 8
)

// replyFor returns the reply for a failed dial. A timeout is "TTL expired", as
// in Tor and Dante, so that clients can tell it from a host without a route.
// Faults on the way, rather than of the destination, are "general failure".
func replyFor(f tunnel.Failure) byte {
	switch f {
	case tunnel.FailRefused, tunnel.FailReset:
		return replyRefused
	case tunnel.FailTimeout:
		return replyTTLExpired
	case tunnel.FailHostUnreach, tunnel.FailNoSuchHost, tunnel.FailResolve:
		return replyHostUnreach
	case tunnel.FailNetUnreach:
		return replyNetUnreach
	case tunnel.FailDenied:
		return replyNotAllowed
	default:
		return replyGeneral
	}
}

// replyTo is a reply without an address.
func replyTo(code byte) []byte {
	return appendReply(nil, code, netip.AddrPort{})
}

// appendReply writes VER REP RSV ATYP BND.ADDR BND.PORT (RFC 1928 §6); an
// address that is not known is 0.0.0.0:0.
func appendReply(b []byte, code byte, bound netip.AddrPort) []byte {
	ip := bound.Addr().Unmap()
	if !ip.IsValid() {
		ip = netip.IPv4Unspecified()
	}
	kind := byte(addressIPv6)
	if ip.Is4() {
		kind = addressIPv4
	}
	b = append(b, version5, code, 0, kind)
	b = append(b, ip.AsSlice()...)
	return binary.BigEndian.AppendUint16(b, bound.Port())
}

// boundAddress returns the local address of the far side's connection. A tunnel
// may know none, or only a name.
func boundAddress(a net.Addr) netip.AddrPort {
	bound, err := netip.ParseAddrPort(addrText(a))
	if err != nil {
		return netip.AddrPort{}
	}
	return bound
}
