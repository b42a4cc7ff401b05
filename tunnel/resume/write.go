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

// WriteChunks implements tunnel.Sink. Detached a carrier it takes what it can
// keep.
func (c *Conn) WriteChunks(src []tunnel.Chunk) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.writable(); err != nil {
			tunnel.ReleaseAll(src)
			return err
		}
		if !c.full() {
			break
		}
		if c.room == nil {
			c.room = new(room)
		}
		c.room.want(time.Now())
		if c.big && c.st != nil && !c.hasMuch() {
			c.acknowledge() // so that the peer does so sooner
		}
		c.changed.Wait()
	}
	for i := range src {
		c.end.Out.Append(src[i])
		src[i] = tunnel.Chunk{}
	}
	c.account()
	c.used = tunnel.Now()
	if c.startSending() {
		c.sendInTime()
	}
	if c.end.Reason() != NotGone && c.err != nil {
		return c.err
	}
	return nil
}

// Nonblocking implements tunnel.Sink: CloseWrite does not block, but what is
// written has to be kept too.
func (c *Conn) Nonblocking() bool { return false }

// TryWrite implements tunnel.Sink.
func (c *Conn) TryWrite(tunnel.Chunk) int { return 0 }

// Flush implements tunnel.Sink.
func (c *Conn) Flush() {}

func (c *Conn) writable() error {
	switch {
	case c.end.Closed():
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.end.Out.Finished():
		return errWriteClosed
	case c.writeBy.passed():
		return errDeadline
	default:
		return nil
	}
}

// startSending says whether the carrier is to be given something, and that it
// is the caller's to do.
func (c *Conn) startSending() bool {
	if c.sending || c.st == nil || !c.end.Carried() || !c.end.Out.Unsent() {
		return false
	}
	c.sending = true
	return true
}

// sendInTime sends for a writer. One with a deadline has it done by another,
// since what a carrier was given in part cannot be taken back.
func (c *Conn) sendInTime() {
	if c.writeBy.time().IsZero() || !c.ends.start(c.sendOn) {
		c.stuck = true
		c.send()
		c.stuck = false
		return
	}
	for c.sending && !c.writeBy.passed() && c.err == nil {
		c.changed.Wait()
	}
}

func (c *Conn) sendOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send()
}

// send gives the carrier what it has not been given. The lock is released while
// the carrier takes it.
func (c *Conn) send() {
	chunks := batches.Get().(*[batch]tunnel.Chunk)
	defer batches.Put(chunks) // those who were given them have cleared them
	for c.st != nil && c.end.Carried() && c.end.Out.Unsent() {
		st, epoch := c.st, c.epoch
		n, fin := c.end.Out.Next(chunks[:])
		c.mu.Unlock()
		err := give(st, chunks[:n], fin)
		c.mu.Lock()
		if err != nil {
			if left := c.broken(st, epoch, err); left != nil {
				c.ends.detach(c, left)
			}
			break
		}
		c.end.Out.Given()
	}
	c.sending = false
	c.account()
	c.changed.Broadcast()
	c.settle()
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
