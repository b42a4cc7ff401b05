package tunnel

import (
	"io"
	"net"
	"syscall"
	"time"
)

// Wrap makes a Conn of any net.Conn. TCP and unix connections
// half-close and reset as the kernel does. All others get an adapter that copies:
// on TLS, CloseWrite is close_notify, and Reset drops the TCP connection under it
// without one. A connection without a CloseWrite of its own is closed both ways by
// CloseWrite, since there is nothing better. Wrap a TCP connection before it
// carries TLS, too: TLS takes any end of TCP for one in order, and only a wrapped
// TCP connection tells a reset from that.
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

// foreign makes a Conn of any net.Conn: the connections under it reset and fail for
// it where it cannot itself.
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

// NetConn returns the wrapped connection.
func (c *foreign) NetConn() net.Conn { return c.conn }

func (c *foreign) LocalAddr() net.Addr                { return c.conn.LocalAddr() }
func (c *foreign) RemoteAddr() net.Addr               { return c.conn.RemoteAddr() }
func (c *foreign) SetDeadline(t time.Time) error      { return c.conn.SetDeadline(t) }
func (c *foreign) SetReadDeadline(t time.Time) error  { return c.conn.SetReadDeadline(t) }
func (c *foreign) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// abort closes c so that its peer notices that this is no end in order: the
// lowest connection goes first, as a TCP connection with a reset. So nothing above
// it blocks on a goodbye (TLS's close_notify); closing the upper ones only unblocks
// their readers and writers.
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

// failureOf returns why c, or a connection under it, was reset or timed out.
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

// CopySource returns the Source of a Reader that knows nothing of chunks. It holds
// a small buffer while it waits.
func CopySource(r io.Reader) Source { return &copySource{from: r, size: probeSize} }

type copySource struct {
	from io.Reader
	size int // of the next chunk
}

// probeSize is the buffer of a source that cannot hand over chunks while it
// has nothing to say. A read that fills it moves on to full chunks.
const probeSize = 2<<10 - Headroom

func (s *copySource) Read(p []byte) (int, error) { return s.from.Read(p) }

func (s *copySource) ReadChunks(dst []Chunk) (int, error) {
	chunk := NewChunk(s.size)
	n, err := s.from.Read(chunk.Bytes())
	if n == 0 {
		chunk.Release()
		if err == nil {
			err = io.ErrNoProgress
		}
		return 0, err
	}
	// An error that came with data comes again on the next read.
	dst[0] = chunk.Slice(0, n)
	s.size = probeSize
	if n >= probeSize {
		s.size = ChunkSize
	}
	return 1, nil
}

func (s *copySource) Deliver(Receiver) bool { return false }
func (s *copySource) Rest(Receiver) bool    { return false }

// copySink is the Sink of a Writer that knows nothing of chunks.
type copySink struct{ to io.Writer }

func (s *copySink) Write(p []byte) (int, error) { return s.to.Write(p) }

func (s *copySink) WriteChunks(src []Chunk) error {
	defer ReleaseAll(src)
	for _, chunk := range src {
		if _, err := s.to.Write(chunk.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (*copySink) Nonblocking() bool  { return false }
func (*copySink) TryWrite(Chunk) int { return 0 }
func (*copySink) Flush()             {}
