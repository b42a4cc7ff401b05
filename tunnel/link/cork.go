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

// corkSize is how much ciphertext is gathered before it goes to the kernel:
// what one turn of a bulk stream makes, four records and their overhead.
const corkSize = 68 << 10

// cork gathers the records that TLS writes one by one, so that a turn of the
// link costs one system call, not one for each record. It also knows when the
// link is about to wait for its peer, which is the moment to send others what
// they were given meanwhile. It passes everything through until the session
// takes hold of it.
type cork struct {
	net.Conn
	raw syscall.RawConn // nil: not a socket, or on Windows

	mu    sync.Mutex // TLS alerts may be written beside the session's turns
	buf   []byte     // what is gathered
	block *[]byte    // where buf is to go back to; nil while nothing is gathered
	hold  bool
	taken *atomic.Uint64 // writes that the connection took some of; set by take

	// The writer's own, under mu: RawConn.Write wants a closure, and one a
	// connection is cheaper than one a write.
	writeFn   func(fd uintptr) bool
	writeFrom []byte
	writeWait bool // until the kernel takes something
	writeN    int
	writeE    error

	// The reader's own.
	idle   func() // called before a Read has to wait; nil until taken
	readFn func(fd uintptr) bool
	readTo []byte
	readN  int
	readE  error
}

// blocks hold idle buffers of corks: a link that has nothing to send needs none,
// and they can be some 200 KiB after bulk.
var blocks sync.Pool

// Cork prepares a raw connection to carry a link: wrap it before the TLS
// handshake, and Connect or Accept will find it under the *tls.Conn. A link
// works without it too, at one system call for each record.
func Cork(conn net.Conn) net.Conn {
	c := &cork{Conn: conn}
	if s, ok := conn.(syscall.Conn); ok {
		c.raw, _ = tunnel.RawConn(s)
	}
	c.readFn, c.writeFn = c.readOnce, c.writeOnce
	return c
}

// NetConn returns the wrapped connection.
func (c *cork) NetConn() net.Conn { return c.Conn }

// SyscallConn lets others tune the socket under the cork.
func (c *cork) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil {
		return nil, syscall.EINVAL
	}
	return c.raw, nil
}

// CloseWrite passes a half-close on, as a tunnel.Conn over TLS may want it.
func (c *cork) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// Read reads from the connection, and calls idle if it has to wait.
func (c *cork) Read(p []byte) (int, error) {
	if c.idle == nil {
		return c.Conn.Read(p)
	}
	if c.raw == nil {
		c.idle() // whether it has to wait cannot be told
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
func (c *cork) readOnce(fd uintptr) bool {
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

func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hold {
		return c.Conn.Write(p)
	}
	if c.block == nil {
		c.borrow()
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *cork) borrow() {
	block, ok := blocks.Get().(*[]byte)
	if !ok {
		block = new([]byte)
	}
	c.block, c.buf = block, *block
}

// giveBack is called once nothing that was gathered is needed any more.
func (c *cork) giveBack() {
	if c.block != nil {
		*c.block = c.buf[:0]
		blocks.Put(c.block)
		c.block, c.buf = nil, nil
	}
}

// take makes the cork gather writes until each flush, count in taken how the
// connection gets on with them, and call idle before a Read waits. Call it
// where no Read or Write is under way.
func (c *cork) take(idle func(), taken *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = true
	c.idle = idle
	c.taken = taken
}

// hasRoom says whether there is little enough gathered to add another record
// without sending first.
func (c *cork) hasRoom() bool {
	if !c.mu.TryLock() {
		return false // being flushed
	}
	defer c.mu.Unlock()
	return len(c.buf) < corkSize
}

// tryFlush sends what the kernel takes at once, and says whether anything is
// left that nobody else is about to send.
func (c *cork) tryFlush() (left bool) {
	if !c.mu.TryLock() {
		return false // who holds it sends what is there, or has just added to it and will
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

// rawWrite is one write to the socket, of what it takes now, or if wait is set
// as soon as it takes something.
func (c *cork) rawWrite(p []byte, wait bool) (int, error) {
	c.writeFrom, c.writeWait, c.writeN, c.writeE = p, wait, 0, nil
	err := c.raw.Write(c.writeFn)
	c.writeFrom = nil
	if err != nil {
		return 0, err
	}
	return c.writeN, c.writeE
}

// writeOnce is one attempt to write; false asks the poller to wait.
func (c *cork) writeOnce(fd uintptr) bool {
	c.writeN, c.writeE = tunnel.RawWrite(fd, c.writeFrom)
	if c.writeE == syscall.EAGAIN {
		return !c.writeWait
	}
	if c.writeE != nil {
		c.writeE = &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("write", c.writeE)}
	}
	return true
}

// flush sends what was gathered.
func (c *cork) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

func (c *cork) flushLocked() error {
	defer c.giveBack()
	for rest := c.buf; len(rest) > 0; {
		n, err := c.writeSome(rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
		c.taken.Add(1)
	}
	return nil
}

// writeSome waits until the connection takes a part of p: on a slow path all
// of it may take longer than a dead link is given.
func (c *cork) writeSome(p []byte) (int, error) {
	if c.raw == nil {
		return c.Conn.Write(p[:min(len(p), tunnel.RecordSize)])
	}
	return c.rawWrite(p, true)
}

// release lets writes pass again, for the last words of TLS. Where a write is
// stuck in the kernel there will be none: the connection is closed under TLS,
// which knows nothing of the flush and would wait behind it to say goodbye.
func (c *cork) release() {
	if !c.mu.TryLock() {
		_ = c.Conn.Close()
		return
	}
	defer c.mu.Unlock()
	c.hold = false
	c.giveBack()
}
