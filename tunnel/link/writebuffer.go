package link

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"konnectivity/tunnel"
)

// writeBufferSize bounds the ciphertext that is buffered before it goes to the kernel:
// what one turn of a bulk stream makes, four records and their overhead.
const writeBufferSize = 68 << 10

// writeBuffer buffers the records that TLS writes one by one, so that a turn costs one
// system call instead of one for each record. It also calls idle when a Read is about to
// wait for the peer, which is when deliveries are flushed. Until take is called, it
// passes everything through.
type writeBuffer struct {
	net.Conn
	raw syscall.RawConn // nil: not a socket, or on Windows

	mu       sync.Mutex     // TLS alerts may be written beside the session's turns
	buf      []byte         // the buffered bytes
	block    *[]byte        // the pooled block of buf; nil while it is empty
	buffers  bool           // from take to passThrough
	failed   bool           // a flush has, perhaps within a record
	accepted *atomic.Uint64 // counts writes of which the connection took some

	// Owned by the writer, under mu. RawConn.Write wants a closure: one for each
	// connection is cheaper than one for each write.
	writeFn   func(fd uintptr) bool
	writeFrom []byte
	writeWait bool // until the kernel takes something
	writeN    int
	writeE    error

	// Owned by the reader.
	idle   func() // called before a Read waits; nil until take
	readFn func(fd uintptr) bool
	readTo []byte
	readN  int
	readE  error
}

// blocks hold idle buffers: a link that has nothing to send needs none, and one can be
// some 200 KiB after bulk.
var blocks sync.Pool

// Buffered prepares a raw connection to carry a link: wrap it before the TLS handshake,
// and Connect or Accept will find it under the *tls.Conn. A link works without it too,
// at one system call for each record.
func Buffered(conn net.Conn) net.Conn {
	c := &writeBuffer{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok {
		c.raw, _ = tunnel.RawConn(s)
	}
	c.readFn, c.writeFn = c.readOnce, c.writeOnce
	return c
}

// NetConn returns the wrapped connection.
func (c *writeBuffer) NetConn() net.Conn { return c.Conn }

// SyscallConn gives access to the socket under the buffer.
func (c *writeBuffer) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil {
		return nil, syscall.EINVAL
	}
	return c.raw, nil
}

// CloseWrite half-closes the connection, which a tunnel.Conn over TLS may do.
func (c *writeBuffer) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// Read reads from the connection, and calls idle before it waits.
func (c *writeBuffer) Read(p []byte) (int, error) {
	if c.idle == nil {
		return c.Conn.Read(p)
	}
	if c.raw == nil {
		c.idle() // it may wait
		return c.Conn.Read(p)
	}
	c.readTo = p
	err := c.raw.Read(c.readFn)
	c.readTo = nil
	if err != nil {
		return 0, err
	}
	return c.readN, c.readE
}

// readOnce is one attempt to read; false asks the poller to wait.
func (c *writeBuffer) readOnce(fd uintptr) bool {
	c.readN, c.readE = tunnel.RawRead(fd, c.readTo)
	switch c.readE {
	case nil, io.EOF:
		return true
	case syscall.EAGAIN:
		c.idle()
		return false
	}
	c.readE = &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", c.readE)}
	return true
}

func (c *writeBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.buffers {
		return c.Conn.Write(p)
	}
	if c.block == nil {
		c.borrow()
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *writeBuffer) borrow() {
	block, ok := blocks.Get().(*[]byte)
	if !ok {
		block = new([]byte)
	}
	c.block, c.buf = block, *block
}

// giveBack returns the block to its pool. What was buffered is lost.
func (c *writeBuffer) giveBack() {
	if c.block != nil {
		*c.block = c.buf[:0]
		blocks.Put(c.block)
		c.block, c.buf = nil, nil
	}
}

// take begins to buffer writes until each flush, counting in accepted how the
// connection takes them, and to call idle before a Read waits. No Read or Write may be
// in progress.
func (c *writeBuffer) take(idle func(), accepted *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buffers = true
	c.idle = idle
	c.accepted = accepted
}

// hasRoom reports whether another record may be added without a flush.
func (c *writeBuffer) hasRoom() bool {
	if !c.mu.TryLock() {
		return false // being flushed
	}
	defer c.mu.Unlock()
	return len(c.buf) < writeBufferSize
}

// tryFlush sends what the kernel takes at once, and reports whether bytes remain that
// no other goroutine is about to send.
func (c *writeBuffer) tryFlush() (unsent bool) {
	if !c.mu.TryLock() {
		return false // the holder flushes, or is about to
	}
	defer c.mu.Unlock()
	if len(c.buf) == 0 {
		return false
	}
	if c.raw == nil {
		return true
	}
	n, _ := c.rawWrite(c.buf, false) // an error comes again, to flush
	if n == len(c.buf) {
		c.giveBack()
		return false
	}
	c.buf = c.buf[:copy(c.buf, c.buf[n:])]
	return true
}

// rawWrite is one write to the socket, of what it takes now; if wait is set, it first
// waits until the socket takes something.
func (c *writeBuffer) rawWrite(p []byte, wait bool) (int, error) {
	c.writeFrom, c.writeWait, c.writeN, c.writeE = p, wait, 0, nil
	err := c.raw.Write(c.writeFn)
	c.writeFrom = nil
	if err != nil {
		return 0, err
	}
	return c.writeN, c.writeE
}

// writeOnce is one attempt to write; false asks the poller to wait.
func (c *writeBuffer) writeOnce(fd uintptr) bool {
	c.writeN, c.writeE = tunnel.RawWrite(fd, c.writeFrom)
	if c.writeE == syscall.EAGAIN {
		return !c.writeWait
	}
	if c.writeE != nil {
		c.writeE = &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("write", c.writeE)}
	}
	return true
}

// flush sends the buffered bytes.
func (c *writeBuffer) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

func (c *writeBuffer) flushLocked() error {
	defer c.giveBack()
	for rest := c.buf; len(rest) > 0; {
		n, err := c.writeSome(rest)
		if err != nil {
			c.failed = true
			return err
		}
		rest = rest[n:]
		c.accepted.Add(1)
	}
	return nil
}

// writeSome waits until the connection takes a part of p. On a slow path, all of p may
// take longer than a link may be silent.
func (c *writeBuffer) writeSome(p []byte) (int, error) {
	if c.raw == nil {
		return c.Conn.Write(p[:min(len(p), tunnel.RecordSize)])
	}
	return c.rawWrite(p, true)
}

// passThrough ends the buffering, for TLS's closing alert. Where a flush is stuck in the
// kernel, or was, it closes the connection under TLS instead, which would wait behind the
// flush, or for the kernel once more.
func (c *writeBuffer) passThrough() {
	if !c.mu.TryLock() {
		_ = c.Conn.Close()
		return
	}
	defer c.mu.Unlock()
	if c.failed {
		_ = c.Conn.Close()
	}
	c.buffers = false
	c.giveBack()
}
