package resume

import (
	"io"
	"net"
	"time"

	"konnectivity/tunnel"
)

// Rest implements tunnel.Source: there is a read loop.
func (c *Conn) Rest(tunnel.Receiver) bool { return false }

// Deliver implements tunnel.Source.
func (c *Conn) Deliver(r tunnel.Receiver) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.begin(r)
	if c.st != nil {
		c.st.In().Deliver(&inlet{c, c.st, c.m.Epoch()})
	}
	return true
}

// inlet is the Receiver of one carrier.
type inlet struct {
	c     *Conn
	st    Carrier
	epoch uint32
}

// Take implements tunnel.Receiver.
func (i *inlet) Take(chunk tunnel.Chunk) int {
	n := i.c.read.take(chunk)
	if n > 0 {
		i.c.mu.Lock()
		i.c.step(i.c.m.Took(i.epoch, n, false))
		i.c.mu.Unlock()
	}
	return n
}

// Flush implements tunnel.Receiver.
func (i *inlet) Flush() { i.c.read.app.Flush() }

// Ready implements tunnel.Receiver.
func (i *inlet) Ready() { i.c.ready() }

// ready gives the read token to the application, or to drop.
func (c *Conn) ready() {
	if c.read.ready() {
		c.manager.start(c.drop)
	}
}

// End implements tunnel.Receiver. The end of a carrier that was left comes again by the
// next.
func (i *inlet) End() {
	c := i.c
	c.mu.Lock()
	if c.st != i.st || c.m.In.Finished() {
		c.mu.Unlock()
		return
	}
	tells := !c.read.dropping.Load() && c.read.claimEnd()
	c.step(c.m.Took(i.epoch, 0, true))
	c.mu.Unlock()
	if tells {
		c.read.app.End()
	}
}

// Fail implements tunnel.Receiver. The watcher hears of the loss, too, and the machine
// decides whether the connection fails with its carrier.
func (i *inlet) Fail(error) {}

// ReadChunks implements tunnel.Source.
func (c *Conn) ReadChunks(dst []tunnel.Chunk) (int, error) { return c.readWith(chunksInto(dst)) }

// reader takes bytes out of a carrier. It returns what its caller is told, and how many
// bytes that is.
type reader func(Carrier) (n, size int, err error)

// chunksInto reads chunks.
func chunksInto(dst []tunnel.Chunk) reader {
	return func(st Carrier) (n, size int, err error) {
		n, err = st.In().ReadChunks(dst)
		for _, chunk := range dst[:n] {
			size += chunk.Len()
		}
		return n, size, err
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	return c.readWith(func(st Carrier) (int, int, error) {
		n, err := st.In().Read(p)
		return n, n, err
	})
}

// readWith reads until bytes or the end have come. A holder of the token does not get the
// end if the application has got it already.
func (c *Conn) readWith(from reader) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.fetch(from, Reading)
	if err != nil && !c.read.claimEnd() {
		return 0, nil
	}
	return n, err
}

// fetch reads for the application, or for drop. Without a carrier, a reader waits for the
// next; a holder of the token returns that, and is given it again.
func (c *Conn) fetch(from reader, as ReaderState) (int, error) {
	for {
		switch err := c.readable(as); {
		case err != nil:
			return 0, err
		case c.st != nil:
		case !c.read.delivers():
			c.changed.Wait()
			continue
		case c.read.release():
			return 0, nil
		default:
			continue
		}
		n, size, err := c.readCarrier(from)
		switch {
		case err == io.EOF:
			return 0, io.EOF
		case err == errDeadline: // the carrier's, which may be a moment ahead of ours, or behind
		case err != nil && c.m.Over() && c.m.Err() != nil:
			return 0, c.m.Err()
		case err != nil:
		case size > 0:
			return n, nil
		case !c.read.delivers():
			return 0, nil // of an empty read
		case c.m.Reader() != as: // closed meanwhile
		case c.read.release():
			return n, nil
		}
	}
}

// readable returns why no read can succeed; nil: one may, now or by waiting.
func (c *Conn) readable(as ReaderState) error {
	switch {
	case as == Reading && c.m.Closed(), as == Dropping && c.m.Over():
		return net.ErrClosed
	case c.m.In.Finished():
		return io.EOF
	case c.st == nil && c.m.Err() != nil:
		return c.m.Err()
	case c.readBy.passed():
		return errDeadline
	}
	return nil
}

// readCarrier reads the carrier without the lock, and passes the result to the machine.
func (c *Conn) readCarrier(from reader) (n, size int, err error) {
	st, epoch := c.st, c.m.Epoch()
	c.m.BeginRead()
	c.mu.Unlock()
	n, size, err = from(st)
	c.mu.Lock()
	c.step(c.m.ReadDone(epoch, size, err == io.EOF))
	if err != nil && err != io.EOF && err != errDeadline {
		c.step(c.m.CarrierLost(epoch, err, time.Now()))
	}
	return n, size, err
}

// drop takes and drops bytes that arrive after Close: the peer may have to send them
// before it takes those that Close still delivers. It holds no memory while it waits.
// Where carriers deliver, ready starts it whenever there are bytes.
func (c *Conn) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.m.BeingRead() { // Close has them return
		c.changed.Wait()
	}
	if c.st != nil {
		_ = c.st.SetReadDeadline(time.Time{})
	}
	var chunks [batch]tunnel.Chunk
	for {
		n, err := c.fetch(chunksInto(chunks[:]), Dropping)
		tunnel.ReleaseAll(chunks[:n])
		if n == 0 || err != nil {
			return
		}
	}
}
