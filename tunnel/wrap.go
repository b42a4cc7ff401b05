package tunnel

import (
	"net"
	"syscall"
	"time"
)

// Wrap gives a net.Conn the manners of a Conn. TCP and unix connections
// half-close and reset as the kernel does; all others get what they lack by an
// adapter that copies: on TLS, CloseWrite is close_notify, and Reset drops the
// TCP connection under it without one. Of a connection that has no CloseWrite
// of its own it closes both ways, since there is nothing better. A connection
// that is to carry TLS is best wrapped before that too: TLS takes an end of TCP
// for one in order, and a TCP connection tells a reset from that only once it
// is wrapped.
func Wrap(c net.Conn) Conn {
	switch c := c.(type) {
	case Conn:
		return c
	case *net.TCPConn:
		return newSocket(c)
	case *net.UnixConn:
		return newSocket(c)
	default:
		return newForeign(c)
	}
}

// foreign is any net.Conn as a Conn. What it cannot do by itself is asked of
// what lies under it.
type foreign struct {
	conn net.Conn
	in   copySource
	out  copySink
}

func newForeign(c net.Conn) *foreign {
	return &foreign{conn: c, in: copySource{from: c, size: probeSize}, out: copySink{c}}
}

func (c *foreign) Read(p []byte) (int, error)  { return c.conn.Read(p) }
func (c *foreign) Write(p []byte) (int, error) { return c.conn.Write(p) }
func (c *foreign) Close() error                { return c.conn.Close() }
func (c *foreign) CloseFor(error) error        { return c.conn.Close() }

func (c *foreign) CloseWrite() error {
	if h, ok := c.conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.conn.Close()
}

func (c *foreign) Reset(cause error) error {
	abort(c.conn, cause)
	return nil
}

func (c *foreign) Failed() error { return failureOf(c.conn) }
func (c *foreign) In() Source    { return &c.in }
func (c *foreign) Out() Sink     { return &c.out }

// NetConn is the wrapped connection.
func (c *foreign) NetConn() net.Conn { return c.conn }

func (c *foreign) LocalAddr() net.Addr                { return c.conn.LocalAddr() }
func (c *foreign) RemoteAddr() net.Addr               { return c.conn.RemoteAddr() }
func (c *foreign) SetDeadline(t time.Time) error      { return c.conn.SetDeadline(t) }
func (c *foreign) SetReadDeadline(t time.Time) error  { return c.conn.SetReadDeadline(t) }
func (c *foreign) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// abort closes c so that its peer notices that this is no end in order: what
// lies lowest goes first, as a TCP connection with a reset. Nothing above then
// blocks on a goodbye (TLS's close_notify); closing it only unblocks who reads
// or writes there.
func abort(c net.Conn, cause error) {
	switch conn := c.(type) {
	case interface{ Reset(error) error }:
		_ = conn.Reset(cause)
		return
	case interface{ NetConn() net.Conn }:
		abort(conn.NetConn(), cause)
	case interface{ SetLinger(int) error }:
		_ = conn.SetLinger(0)
	}
	_ = c.Close()
}

// failureOf asks c, or what lies under it, whether it was reset or has timed
// out.
func failureOf(c net.Conn) (cause error) {
	for ; c != nil; c = under(c) {
		switch conn := c.(type) {
		case interface{ Failed() error }:
			return conn.Failed()
		case syscall.Conn:
			raw, err := conn.SyscallConn()
			if err != nil {
				return nil
			}
			return socketFailure(raw)
		}
	}
	return nil
}
