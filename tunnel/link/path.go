package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

// Path connects to a peer, also by a network that loses large packets and does not say so: a
// tunnel on the way whose MTU is smaller than this machine's, and a firewall that drops the ICMP
// messages about it (RFC 2923 §2.1). TCP connects there, and nothing large arrives. A handshake
// tells, since the first messages of both ends are large. Then the next connections have small
// segments, both ways: TCP tells the peer of the size as it connects. The zero value is ready for
// use; its methods may be called from any goroutine.
type Path struct{ until atomic.Int64 } // when connections stop being narrow, a tunnel.Moment

const (
	// narrowSegment makes packets of 1,280 bytes at most, the least MTU that IPv6 allows.
	narrowSegment = 1220

	// narrowFor is how long connections begin with small segments: a network that was down as
	// a handshake was under way looks the same, and costs no more than that.
	narrowFor = time.Hour

	// hopeTime is how long a handshake goes on, though it may take longer, if a segment of it was
	// not received, nor when it was sent again, hopeRepeats times. Between near ends (hopeRTT), it
	// is sent again that often by then; the pauses grow.
	hopeTime    = 3 * time.Second
	hopeRepeats = 3
	hopeRTT     = 100 * time.Millisecond
)

// UnheardError says that the peer accepted a connection, and that one of the two did not receive
// the other's handshake.
type UnheardError struct {
	Peer string // what the peer does, behind its name
	Err  error
}

func (e *UnheardError) Error() string {
	return "the other end " + e.Peer + "; large packets may be lost on the way (MTU): " + e.Err.Error()
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
	bounded, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer time.AfterFunc(hopeTime, func() {
		if seen := lookAt(conn.NetConn()); seen.repeats >= hopeRepeats || seen.gap && seen.rtt < hopeRTT {
			giveUp()
		}
	}).Stop()
	// HandshakeContext would close the socket, which then tells no more.
	stop := context.AfterFunc(bounded, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := conn.HandshakeContext(context.WithoutCancel(ctx))
	late := !stop()
	if late {
		err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	seen, peer := lookAt(conn.NetConn()), ""
	answered := conn.ConnectionState().Version != 0 // our hello was received
	switch {
	case seen.unheard && (late || !answered): // or what is not acknowledged is an alert about the answer
		peer = "does not receive what is sent"
	case seen.gap && late: // or the gap was filled, and what arrived is why this failed
		peer = "sends what does not arrive"
	default:
		return err
	}
	p.unheard(seen.size, time.Now())
	return &UnheardError{peer, err}
}

// unheard notes the size of segments with which a handshake was not received. Others may have
// failed meanwhile, so the next are not the opposite of those before.
func (p *Path) unheard(segment int, now time.Time) {
	if segment > narrowSegment {
		p.until.Store(int64(tunnel.At(now.Add(narrowFor))))
	} else {
		p.until.Store(0)
	}
}

// narrow reports whether a connection that begins now has small segments.
func (p *Path) narrow(now time.Time) bool { return int64(tunnel.At(now)) < p.until.Load() }

// segments is what the system knows of a connection's.
type segments struct {
	size    int  // of each that is sent, in bytes
	repeats int  // of the oldest that is not acknowledged, in a row
	unheard bool // some were sent again, and some are not acknowledged
	gap     bool // some arrived before one that was sent earlier
	rtt     time.Duration
}

func lookAt(c net.Conn) (seen segments) {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			seen = segmentsOf(raw)
		}
	}
	return seen
}
