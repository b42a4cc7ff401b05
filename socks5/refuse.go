package socks5

import (
	"errors"
	"fmt"
	"io"
	"os"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// Why a connection ended before its dial, as a metric's label, besides
// front.ReasonLimit.
const (
	reasonEvicted  = "evicted"  // still in its handshake when another connection needed the slot
	reasonTimeout  = "timeout"  // the handshake took too long
	reasonClosed   = "closed"   // the client went away
	reasonProtocol = "protocol" // neither SOCKS5 nor a protocol that is recognised
	reasonSOCKS4   = "socks4"
	reasonHTTP     = "http"
	reasonTLS      = "tls"
	reasonMethod   = "method"  // no authentication method in common
	reasonAuth     = "auth"    // wrong user or password
	reasonCommand  = "command" // BIND, UDP ASSOCIATE, others
	reasonAddress  = "address" // unknown type, bad name, port 0
)

var (
	errEvicted = errors.New("its handshake was unfinished when the slot was needed")
	errMethod  = errors.New("the client offers no authentication method that is configured here")
)

// refusal is the reason why a connection gets no dial, and the reply to its client.
type refusal struct {
	reason string
	reply  []byte // nil if the client would not understand any
	err    error
	first  byte // with reasonHTTP: the byte that was read
}

func refused(reason string, reply []byte, err error) *refusal {
	return &refusal{reason: reason, reply: reply, err: err}
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// broken is the refusal for a connection that failed while it was read.
func broken(err error) *refusal {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refused(reasonTimeout, nil, errors.New("the handshake took too long"))
	}
	return refused(reasonClosed, nil, fmt.Errorf("the client left: %w", err))
}

// isEnd reports whether err is the connection's rather than the parser's.
func isEnd(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || tunnel.CodeOf(err) == tunnel.CodePeerReset
}

// foreign returns the refusal for a first byte that is not SOCKS5's, in the
// protocol that it belongs to.
func foreign(first byte) *refusal {
	switch {
	case first == 4: // SOCKS4: VN 0, CD 91 "rejected or failed", six bytes that are ignored
		return refused(reasonSOCKS4, []byte{0, 0x5b, 0, 0, 0, 0, 0, 0}, errors.New("the client speaks SOCKS4"))
	case first == 0x16: // a TLS handshake record: fatal alert "handshake_failure" (RFC 8446 §6.2)
		return refused(reasonTLS, []byte{0x15, 3, 1, 0, 2, 2, 40}, errors.New("the client speaks TLS"))
	case 'A' <= first && first <= 'Z':
		r := refused(reasonHTTP, []byte(httpRefusal), errors.New("the client speaks HTTP"))
		r.first = first
		return r
	default:
		return refused(reasonProtocol, nil, fmt.Errorf("the first byte is %#02x, not SOCKS5's", first))
	}
}

// names is what the front's metrics are called.
var names = front.Names{
	Prefix:   "konnectivity_socks5_",
	Refused:  "SOCKS5 client connections that ended before anything was dialed, by reason.",
	Requests: "SOCKS5 requests by outcome, counted when their destination answered or failed.",
	Open:     "Open SOCKS5 client connections, those still in their handshake included.",
	Reasons: []string{
		front.ReasonLimit, reasonEvicted, reasonTimeout, reasonClosed, reasonProtocol, reasonSOCKS4, reasonHTTP,
		reasonTLS, reasonMethod, reasonAuth, reasonCommand, reasonAddress,
		"rules", // is never counted, and stays for who looks for it
	},
}

const (
	httpText    = "This port speaks SOCKS5, not HTTP: use a proxy URL that starts with socks5:// or socks5h://\n"
	httpRefusal = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" + httpText
)

// refuse sends the refusal to the client and counts it; err is a *refusal. It
// takes about a second at most. The caller closes the connection.
func (s *Server) refuse(conn tunnel.Conn, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		r = broken(err)
	}
	s.Metrics.Refuse(r.reason)
	s.Log.WithField("client", addrText(conn.RemoteAddr())).WithField("reason", r.reason).Debugf("SOCKS5 connection refused: %v", r.err)
	if r.reply != nil || r.reason == reasonAuth {
		admission.HangUp(conn, r.reply)
	}
}
