package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Path connects to a peer, also by a network that loses large packets and does not say so: a
// tunnel on the way whose MTU is smaller than this machine's, and a firewall that drops the ICMP
// messages about it (RFC 2923 §2.1). TCP connects there, and nothing large arrives. A handshake
// tells, since its first message is large; then the next connections have small segments, both
// ways. The zero value is ready for use; its methods may be called from any goroutine.
type Path struct{ until atomic.Int64 } // when connections stop being narrow, in Unix seconds

const (
	// narrowSegment makes packets of 1,280 bytes at most, the least MTU that IPv6 allows.
	narrowSegment = 1220

	// narrowFor is how long connections begin with small segments: a network that was down as
	// a handshake was under way looks the same, and costs no more than that.
	narrowFor = time.Hour
)

// UnheardError says that the peer accepted a connection, but did not receive our handshake.
type UnheardError struct{ Err error }

func (e *UnheardError) Error() string {
	return "the other end does not receive what is sent; large packets may be lost on the way (MTU): " + e.Err.Error()
}

// Unwrap returns Err.
func (e *UnheardError) Unwrap() error { return e.Err }

// Control is a net.Dialer's, for TCP connections that Secure is called with.
func (p *Path) Control(_, _ string, raw syscall.RawConn) error {
	if p.narrow(time.Now()) {
		limitSegments(raw, narrowSegment)
	}
	return nil
}

// Secure makes the handshake of a new TLS connection, which is its caller's to close also if that
// fails. The error wraps an *UnheardError where the system tells so much; the next connections are
// narrow then, or, if this one was, they are not.
func (p *Path) Secure(ctx context.Context, conn *tls.Conn) error {
	// HandshakeContext would close the socket, which then tells no more.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := conn.HandshakeContext(context.WithoutCancel(ctx))
	if !stop() {
		err = ctx.Err()
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	segment, unheard := lookAt(conn.NetConn())
	if !unheard {
		return err
	}
	p.unheard(segment, time.Now())
	return &UnheardError{err}
}

// unheard notes the size of the segments that were not received. Others may have failed
// meanwhile, so the next are not the opposite of those before.
func (p *Path) unheard(segment int, now time.Time) {
	if segment > narrowSegment {
		p.until.Store(now.Add(narrowFor).Unix())
	} else {
		p.until.Store(0)
	}
}

// narrow reports whether a connection that begins now has small segments.
func (p *Path) narrow(now time.Time) bool { return now.Unix() < p.until.Load() }

// lookAt returns the size of c's segments, and whether something was sent twice and is not
// acknowledged.
func lookAt(c net.Conn) (segment int, unheard bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, false
	}
	return unacknowledged(raw)
}
