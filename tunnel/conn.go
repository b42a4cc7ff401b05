package tunnel

import (
	"crypto/tls"
	"net"
)

// Conn is a reliable byte stream that can end as TCP ends: each direction by
// itself (CloseWrite), both in order (Close), or all at once (Reset).
//
// As for every net.Conn, one goroutine may read while another writes, and
// Close and Reset may be called from anywhere, any number of times; both
// unblock pending reads and writes.
type Conn interface {
	net.Conn

	// CloseWrite ends the direction away from the caller, after everything
	// written before it. The other direction is untouched. A Write after it
	// fails.
	CloseWrite() error

	// Reset ends both directions at once. What is in flight may be lost; the
	// peer reads what it already holds, then a *ResetError whose code is
	// CodeOf(cause), or as much of that as the transport can carry (TCP
	// carries only the fact). It then frees what Close would free.
	Reset(cause error) error
}

// Wrap gives a net.Conn of the standard library the manners of a Conn. TCP and
// unix connections half-close and reset as the kernel does; on TLS, CloseWrite
// is close_notify, and Reset drops the TCP connection under it without one. A
// net.Conn of any other kind that is not a Conn already gets a CloseWrite that
// closes both ways, since it has nothing better. A connection that is to carry
// TLS is best wrapped before that too: TLS takes an end of TCP for one in order,
// and a TCP connection tells a reset from that only once it is wrapped.
func Wrap(c net.Conn) Conn {
	switch c := c.(type) {
	case Conn:
		return c
	case *net.TCPConn:
		return newSocket(c)
	case *net.UnixConn:
		return newSocket(c)
	case *tls.Conn:
		return tlsConn{c}
	default:
		return plainConn{c}
	}
}

// Under returns the first that is a T of c and what lies under it, as far as
// each names the next by NetConn, as crypto/tls does.
func Under[T any](c net.Conn) (found T, ok bool) {
	for c != nil {
		if found, ok = c.(T); ok {
			return found, true
		}
		next, has := c.(interface{ NetConn() net.Conn })
		if !has {
			break
		}
		c = next.NetConn()
	}
	return found, false
}

// tlsConn is TLS over anything; tls.Conn already has CloseWrite.
type tlsConn struct{ *tls.Conn }

func (c tlsConn) Reset(cause error) error {
	if under, ok := c.NetConn().(Conn); ok { // TLS inside a tunnel
		_ = under.Reset(cause)
	} else {
		abort(c.NetConn())
	}
	// The transport is gone, so this cannot block on a close_notify; it only
	// unblocks readers and writers inside crypto/tls.
	_ = c.Close()
	return nil
}

type plainConn struct{ net.Conn }

func (c plainConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// NetConn is the wrapped connection.
func (c plainConn) NetConn() net.Conn { return c.Conn }

func (c plainConn) Reset(error) error {
	abort(c.Conn)
	return nil
}

// abort closes c so that a TCP peer sees RST instead of FIN.
func abort(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
