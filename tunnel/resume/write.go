package resume

import (
	"errors"
	"net"
	"sync"
	"time"

	"konnectivity/tunnel"
)

var errWriteClosed = errors.New("write after CloseWrite")

// batch is how many chunks go to a carrier at once.
const batch = 4

var batches = sync.Pool{New: func() any { return new([batch]tunnel.Chunk) }}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.endWrite()
	for n < len(p) {
		part := p[n:min(len(p), n+tunnel.ChunkSize)]
		chunk := [1]tunnel.Chunk{tunnel.CopyChunk(part)}
		if err := c.WriteChunks(chunk[:]); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// beginWrite waits until no other Write is under way, so that the bytes of two do not mix.
// endWrite must follow.
func (c *Conn) beginWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.writable(); err != nil {
			return err
		}
		if !c.writing {
			c.writing = true
			return nil
		}
		c.changed.Wait()
	}
}

func (c *Conn) endWrite() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	c.changed.Broadcast()
}

// WriteChunks implements tunnel.Sink. Without a carrier it takes what it can
// keep.
func (c *Conn) WriteChunks(src []tunnel.Chunk) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.writable(); err != nil {
			tunnel.ReleaseAll(src)
			return err
		}
		scarce := c.budget().Filling()
		if c.seized() || !c.m.Full(scarce) { // what its relay still has goes along
			break
		}
		c.step(c.m.Blocked(scarce))
		c.waitWith(src)
	}
	c.m.Append(src)
	c.given = false
	a := c.settle(c.m.Written(false))
	c.do(a &^ Send)
	if a&Send != 0 {
		c.sendInTime()
	}
	switch {
	case c.given || !c.m.Over():
		return nil
	case c.writeBy.passed(): // which may have ended it
		return errDeadline
	default:
		return c.m.Err()
	}
}

// waitWith waits for a change. The chunks in a waiting writer's hands count in the memory
// budget as those that are kept do.
func (c *Conn) waitWith(src []tunnel.Chunk) {
	size := 0
	for _, chunk := range src {
		size += chunk.Size()
	}
	c.budget().Hold(size)
	c.changed.Wait()
	c.budget().Give(size)
}

// Nonblocking implements tunnel.Sink. Writes may wait for the replay limit.
func (c *Conn) Nonblocking() bool { return false }

// TryWrite implements tunnel.Sink.
func (c *Conn) TryWrite(tunnel.Chunk) int { return 0 }

// Flush implements tunnel.Sink.
func (c *Conn) Flush() {}

func (c *Conn) writable() error {
	switch {
	case c.m.Closed():
		return net.ErrClosed
	case c.m.Err() != nil && !c.seized():
		return c.m.Err()
	case c.m.Out.Finished():
		return errWriteClosed
	case c.writeBy.passed():
		return errDeadline
	default:
		return nil
	}
}

// sendInTime sends for a writer. If that has a deadline, a goroutine sends instead: chunks
// that a carrier has taken in part cannot be taken back.
func (c *Conn) sendInTime() {
	if c.writeBy.time().IsZero() || !c.manager.start(c.sendOn) {
		c.m.TakeOverSend()
		c.send()
		return
	}
	for c.m.Sending() && !c.writeBy.passed() {
		c.changed.Wait()
	}
}

func (c *Conn) sendOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send()
}

// send gives the carrier what it lacks. The lock is released while the carrier takes it.
func (c *Conn) send() {
	chunks := batches.Get().(*[batch]tunnel.Chunk)
	defer batches.Put(chunks) // WriteChunks has cleared it
	for c.m.Lacks() {
		st, epoch := c.st, c.m.Epoch()
		n, fin := c.m.Next(chunks[:])
		last := !c.m.Lacks()
		c.mu.Unlock()
		err := give(st, chunks[:n], fin)
		c.mu.Lock()
		if err != nil {
			c.step(c.m.CarrierLost(epoch, err, time.Now()))
			break
		}
		c.given = last // also where the connection has ended meanwhile
		c.m.Given()
	}
	c.step(c.m.Sent())
}

func give(st Carrier, chunks []tunnel.Chunk, fin bool) error {
	if len(chunks) > 0 {
		if err := st.Out().WriteChunks(chunks); err != nil {
			return err
		}
	}
	if fin {
		return st.CloseWrite()
	}
	return nil
}
