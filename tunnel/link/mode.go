package link

import (
	"crypto/tls"
	"errors"
	"net"
)

// Mode says whether a program speaks the link with its peers: what --link means
// on all of them.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // with peers that have it, else the protocol of old ones
	Off     Mode = "off"     // with no peer
	Require Mode = "require" // an old peer is an error
)

// Valid says whether m is one of them.
func (m Mode) Valid() bool { return m == Auto || m == Off || m == Require }

// noApplicationProtocol is the alert of RFC 7301 §3.2.
const noApplicationProtocol tls.AlertError = 120

// NoProtocol says whether a TLS handshake failed because the peer speaks none
// of the protocols that were offered to it.
func NoProtocol(err error) bool {
	var alert *net.OpError
	// crypto/tls has no exported type for alerts outside QUIC; they share
	// their words, though.
	return errors.As(err, &alert) && alert.Op == "remote error" && alert.Err != nil &&
		alert.Err.Error() == noApplicationProtocol.Error()
}
