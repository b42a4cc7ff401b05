package socks5

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"konnectivity/tunnel"
)

// Why a connection ended before its dial, as a metric's label.
const (
	reasonLimit    = "limit"    // too many connections are open
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
	reasonRules    = "rules"
)

var reasons = []string{
	reasonLimit, reasonEvicted, reasonTimeout, reasonClosed, reasonProtocol, reasonSOCKS4, reasonHTTP,
	reasonTLS, reasonMethod, reasonAuth, reasonCommand, reasonAddress, reasonRules,
}

const (
	// partingTime and partingBytes bound how long a refused client's bytes are
	// read, so that it gets the reply: closing a socket with unread bytes sends
	// a reset, which can overtake the reply.
	partingTime  = time.Second
	partingBytes = 64 << 10
)

var (
	errEvicted = errors.New("its handshake was unfinished when the slot was needed")
	errMethod  = errors.New("the client offers no authentication method that is configured here")
)

// refusal is why a connection gets no dial, and what is sent to its client.
type refusal struct {
	reason string
	reply  []byte // nil if the client would not understand any
	err    error
	first  byte // with reasonHTTP: what was read
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

const (
	httpText    = "This port speaks SOCKS5, not HTTP: use a proxy URL that starts with socks5:// or socks5h://\n"
	httpRefusal = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" + httpText
)

// refuse sends the refusal to the client and counts it; err is a *refusal. It
// takes no longer than partingTime. The caller closes the connection.
func (s *Server) refuse(conn tunnel.Conn, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		r = broken(err)
	}
	s.metrics.Refused.WithLabelValues(r.reason).Inc()
	s.opts.Log.WithField("client", addrText(conn.RemoteAddr())).WithField("reason", r.reason).Debugf("SOCKS5 connection refused: %v", r.err)
	if r.reply != nil || r.reason == reasonAuth {
		hangUp(conn, r.reply)
	}
}

// hangUp sends a last message in a way that it arrives.
func hangUp(conn tunnel.Conn, words []byte) {
	_ = conn.SetDeadline(time.Now().Add(partingTime))
	if len(words) > 0 {
		if _, err := conn.Write(words); err != nil {
			return
		}
	}
	if conn.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn, partingBytes)
	}
}
