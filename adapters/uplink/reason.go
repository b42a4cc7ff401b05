package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// unavailable makes err, which kept us from the server, an error for clients.
func unavailable(address string, err error) error {
	if typed, ok := errors.AsType[*tunnel.DialError](err); ok && typed.Failure == tunnel.FailUnavailable {
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: typed.Reason, Err: typed.Err}
	}
	if errors.Is(err, context.Canceled) {
		return &tunnel.DialError{Failure: tunnel.FailCancelled, Address: address, Err: err}
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: reason(err), Err: err}
}

// reason tells a client why the server cannot be reached, without addresses.
func reason(err error) string {
	const what = "the konnectivity server "
	var files *tlsreload.NotReadyError
	var untrusted *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var peer *tlsreload.PeerError
	var op *net.OpError
	var refused *link.GoAwayError
	var dns *net.DNSError
	var unheard *link.UnheardError
	var typed *tunnel.DialError
	switch failure := tunnel.FailureOf(err); {
	case errors.As(err, &typed) && typed.Failure == tunnel.FailUnavailable && typed.Reason != "": // a proxy's
		return typed.Reason
	case errors.As(err, &files):
		return "the certificates for the konnectivity server are not in place"
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return what + "shows a certificate that is not trusted"
	case errors.As(err, &peer):
		return what + "shows a certificate of another role than a server's"
	case tlsreload.RefusedByPeer(err):
		return what + "does not take our client certificate, whose role may not be client; its log says why"
	case tlsreload.OutOfTimeForPeer(err):
		return what + "says that our client certificate has expired or is not valid yet; renew it, or correct the server's clock"
	case tlsreload.NameUnknown(err):
		return what + "does not know the name it was asked for; check --server-name, and whether its tenant was removed or is broken"
	case link.NoProtocol(err):
		return what + "speaks none of the protocols that --link allows here; with --link=auto all are tried"
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls's name for an alert
		return what + "refuses our TLS handshake"
	case errors.As(err, &refused):
		return what + "refuses the link"
	case errors.Is(err, errNoLink):
		return errNoLink.Error()
	case errors.As(err, &dns):
		return "the name of the konnectivity server cannot be resolved"
	case errors.As(err, &unheard):
		return what + unheard.Peer + "; large packets may be lost on the way"
	case failure == tunnel.FailTimeout:
		return what + "does not answer in time"
	case failure == tunnel.FailRefused:
		return what + "refuses connections"
	default:
		return what + "cannot be reached"
	}
}
