package link

import (
	"crypto/tls"
	"errors"
	"net"
)

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
