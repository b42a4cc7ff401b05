package link

import (
	"net"
	"sync"
	"syscall"
)

// corkSize is how much ciphertext is gathered before it goes to the kernel:
// what one turn of a bulk stream makes, four records and their overhead.
const corkSize = 68 << 10

// cork gathers the records that TLS writes one by one, so that a turn of the
// link costs one system call and not one a record. It passes everything
// through until the session takes hold of it.
type cork struct {
	net.Conn

	mu   sync.Mutex // TLS alerts may be written beside the session's turns
	buf  []byte
	hold bool
}

// Cork prepares a raw connection to carry a link: wrap it before the TLS
// handshake, and Connect or Accept will find it under the *tls.Conn. A link
// also works without, at one system call a record.
func Cork(conn net.Conn) net.Conn { return &cork{Conn: conn} }

// NetConn returns the wrapped connection.
func (c *cork) NetConn() net.Conn { return c.Conn }

// SyscallConn lets others tune the socket under the cork.
func (c *cork) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// SetLinger makes a reset possible through the cork.
func (c *cork) SetLinger(sec int) error {
	if l, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(sec)
	}
	return nil
}

// CloseWrite passes a half-close on, as a tunnel.Conn over TLS may want it.
func (c *cork) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hold {
		return c.Conn.Write(p)
	}
	if len(c.buf)+len(p) > corkSize {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

// take makes the cork gather writes until each flush.
func (c *cork) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = true
}

// flush sends what was gathered.
func (c *cork) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

func (c *cork) flushLocked() error {
	if len(c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}

// release lets writes pass again, for the last words of TLS. Where a write is
// stuck in the kernel there will be none, and nothing must wait for it.
func (c *cork) release() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	c.hold = false
	c.buf = nil
}

// findCork looks for a cork under TLS.
func findCork(conn net.Conn) *cork {
	for conn != nil {
		if c, ok := conn.(*cork); ok {
			return c
		}
		under, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = under.NetConn()
	}
	return nil
}
