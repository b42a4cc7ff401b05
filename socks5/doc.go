// Package socks5 is the SOCKS5 front: CONNECT as in RFC 1928, with user and
// password as in RFC 1929, for IPv4, IPv6 and names.
//
// Messages are parsed by armon/go-socks5. Everything around them is here,
// because that library has no deadlines, no shutdown, trusts the order in which
// a client lists its methods and picks replies by error text: the accept loop,
// the limits, the choice of method, the replies, and the relay through a
// [tunnel.Forwarder].
//
// A Server owns the connections that it accepts, until Serve returns or Other
// takes them over. cmd/internal/sidecar makes it.
package socks5
