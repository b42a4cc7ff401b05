package resume

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"
)

var errDeadline error = os.ErrDeadlineExceeded

// Deliver implements tunnel.Source.
func (c *Conn) Deliver(r tunnel.Receiver) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn.begin(r)
	if c.st != nil {
		c.st.In().Deliver(&inlet{c, c.st, c.epoch})
	}
	return true
}

// inlet is what one carrier delivers to.
type inlet struct {
	c     *Conn
	st    Carrier
	epoch uint32
}

// Take implements tunnel.Receiver.
func (i *inlet) Take(chunk tunnel.Chunk) int {
	n := i.c.turn.take(chunk)
	if n > 0 {
		i.c.mu.Lock()
		i.c.took(i.st, i.epoch, n, false)
		i.c.mu.Unlock()
	}
	return n
}

// Flush implements tunnel.Receiver.
func (i *inlet) Flush() { i.c.turn.app.Flush() }

// Ready implements tunnel.Receiver.
func (i *inlet) Ready() { i.c.ready() }

// ready gives the turn to who is to have it.
func (c *Conn) ready() {
	if c.turn.ready() {
		c.ends.start(c.drop)
	}
}

// End implements tunnel.Receiver.
func (i *inlet) End() {
	c := i.c
	c.mu.Lock()
	if c.st != i.st || c.end.In.Finished() {
		c.mu.Unlock()
		return
	}
	told := !c.turn.wasted.Load() && c.turn.tell()
	c.took(i.st, i.epoch, 0, true)
	c.mu.Unlock()
	if told {
		c.turn.app.End()
	}
}

// Fail implements tunnel.Receiver. Whether the connection has failed with its
// carrier is found out by whoever is told that the carrier was Lost.
func (i *inlet) Fail(error) {}

// took counts what came out of a carrier, and acknowledges it if it is time to.
func (c *Conn) took(st Carrier, epoch uint32, n int, fin bool) {
	c.end.In.Take(n)
	if fin {
		c.end.In.Finish()
	}
	c.used = tunnel.Now()
	if c.st == st {
		c.end.Heard(epoch)
		switch {
		case c.end.Due():
			c.acknowledge()
		case !c.owing:
			c.owing = true
			c.ends.owed.add(c)
		}
	}
	if fin {
		c.settle()
	}
}

// ReadChunks implements tunnel.Source.
func (c *Conn) ReadChunks(dst []tunnel.Chunk) (int, error) {
	return c.read(into(dst))
}

// into reads chunks, for read and fetch.
func into(dst []tunnel.Chunk) func(Carrier) (n, size int, err error) {
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
	return c.read(func(st Carrier) (int, int, error) {
		n, err := st.In().Read(p)
		return n, n, err
	})
}

// read reads by from until something came or nothing more will, which who has the
// turn is not told where that was told already. from returns what its caller is
// told, and how many bytes that is.
func (c *Conn) read(from func(Carrier) (n, size int, err error)) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.fetch(from, false)
	if err != nil && !c.turn.tell() {
		return 0, nil
	}
	return n, err
}

// fetch is read, for dropped where nobody reads any more.
func (c *Conn) fetch(from func(Carrier) (n, size int, err error), dropped bool) (int, error) {
	for {
		switch {
		case c.end.Closed() && !dropped, dropped && c.end.Reason() != NotGone:
			return 0, net.ErrClosed
		case c.end.In.Finished():
			return 0, io.EOF
		case c.st == nil && c.err != nil:
			return 0, c.err
		case c.readBy.passed():
			return 0, errDeadline
		case c.st == nil && c.turn.delivers():
			if c.turn.end() {
				return 0, nil
			}
			continue
		case c.st == nil:
			c.changed.Wait()
			continue
		}
		st, epoch := c.st, c.epoch
		c.reading++
		c.mu.Unlock()
		n, size, err := from(st)
		c.mu.Lock()
		c.reading--
		c.changed.Broadcast()
		switch {
		case err == io.EOF:
			c.took(st, epoch, 0, true)
			return 0, io.EOF
		case err == nil && size > 0:
			c.took(st, epoch, size, false)
			return n, nil
		case err == nil && n == 0 && !c.turn.delivers():
			return 0, nil // of an empty read
		case err == nil && c.end.Closed() && !dropped: // meanwhile
		case err == nil:
			if c.turn.end() {
				return n, nil
			}
		case err == errDeadline: // the carrier's, which may be a moment ahead of ours, or behind
			if c.readBy.over(time.Now()) {
				return 0, err
			}
		default:
			if left := c.broken(st, epoch, err); left != nil {
				c.ends.detach(c, left)
			} else if c.end.Reason() != NotGone && c.err != nil {
				return 0, c.err
			}
		}
	}
}

// drop takes what comes, now that nobody reads: the peer may have to get rid of it
// before it takes what was written here, which Close still delivers. It holds no
// memory while it waits. Where carriers deliver, it has its turn whenever they have
// something.
func (c *Conn) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.reading > 0 { // by Close, not for long
		c.changed.Wait()
	}
	if c.st != nil {
		_ = c.st.SetReadDeadline(time.Time{})
	}
	var chunks [batch]tunnel.Chunk
	for {
		n, err := c.fetch(into(chunks[:]), true)
		tunnel.ReleaseAll(chunks[:n])
		if n == 0 || err != nil {
			return
		}
	}
}

// expiry is a deadline; nil is none. Conn.mu guards it.
type expiry struct {
	at      time.Time
	timer   *time.Timer
	expired bool
}

// newExpiry tells changed when t has come; zero: there is no deadline.
func newExpiry(t time.Time, changed *sync.Cond) *expiry {
	if t.IsZero() {
		return nil
	}
	e := &expiry{at: t}
	wait := time.Until(t)
	if wait <= 0 {
		e.expired = true
		changed.Broadcast()
		return e
	}
	e.timer = time.AfterFunc(wait, func() {
		changed.L.Lock()
		defer changed.L.Unlock()
		e.expired = true
		changed.Broadcast()
	})
	return e
}

// time is when it is; zero: never.
func (e *expiry) time() time.Time {
	if e == nil {
		return time.Time{}
	}
	return e.at
}

// passed says whether it has come, as far as who waits was told.
func (e *expiry) passed() bool { return e != nil && e.expired }

// over is passed, be the timer late.
func (e *expiry) over(now time.Time) bool {
	if e != nil && !now.Before(e.at) {
		e.expired = true
	}
	return e.passed()
}

// stop has nobody told any more.
func (e *expiry) stop() {
	if e != nil && e.timer != nil {
		e.timer.Stop()
	}
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.Closed() {
		return net.ErrClosed
	}
	c.readBy.stop()
	c.readBy = newExpiry(t, &c.changed)
	if c.st != nil {
		_ = c.st.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.Closed() {
		return net.ErrClosed
	}
	c.writeBy.stop()
	c.writeBy = newExpiry(t, &c.changed)
	if c.writeBy.passed() && c.stuck && c.st != nil { // who writes is to be set free; nothing less does it
		c.giveUpWrite()
	}
	return nil
}

// giveUpWrite ends the carrier that a write is stuck with.
func (c *Conn) giveUpWrite() {
	if c.end.Plain() && c.end.Carried() { // it is over by that, and its peer to be told
		_ = c.st.Reset(&tunnel.ResetError{Code: codeOver(Unresolved)})
	}
	if left := c.broken(c.st, c.epoch, errLost); left != nil {
		c.ends.detach(c, left)
	}
}
