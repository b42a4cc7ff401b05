package legacy

import (
	"io"
	"net"
	"time"

	"konnectivity/tunnel"
)

const (
	// closeQuiet is how long, after the peer's CLOSE_REQ, the destination may
	// say nothing until CLOSE_RSP is sent. Short, because konnectivity-client
	// sits in Close meanwhile (and net/http closes idle connections one by
	// one), and because with it CLOSE_REQ is the end of both directions. Long
	// enough for a destination that ends when it sees FIN.
	closeQuiet = 100 * time.Millisecond

	// closeCap bounds that wait where the destination goes on sending, below
	// the 10 s for which konnectivity-client waits.
	closeCap = 8 * time.Second

	// closeLinger is how long, after CLOSE_RSP, what the peer sent before it
	// closed may take to reach a slow destination.
	closeLinger = 30 * time.Second

	// firstData is how long data waits after DIAL_RSP, unless the client
	// speaks first. konnectivity-client drops DATA that comes before its
	// dialing goroutine has run (client.go, serve and dialContext), and
	// upstream's server can write it before its "200 Connection Established"
	// (pkg/server/tunnel.go). Nothing tells when that was; on an overloaded
	// machine 25 ms were too few.
	firstData = 100 * time.Millisecond
)

// served is a connection that the peer asked for: an agent's, or the server's
// for a frontend.
//
// CloseWrite sends CLOSE_RSP after the data: to an old peer that is the end of
// both directions, and it must come, since the peer's client may wait for the
// end of the answer. What the peer sent before it noticed can still be read.
// CLOSE_REQ is read as EOF: the destination gets FIN after everything, and may
// still answer; CLOSE_RSP follows when it ends or falls silent.
type served struct {
	stream
	cancel func(cause error) // ends the relay it belongs to
}

func newServed(m *mux, id int64, duplex bool, address string, cancel func(error)) *served {
	c := &served{cancel: cancel}
	c.init(m, id, duplex, c.Reset)
	c.local = tunnel.Addr{Net: "tcp", Text: address}
	c.remote = tunnel.Addr{Net: "tcp", Text: m.remoteAddr}
	return c
}

// announce makes the connection known and tells the peer about it. An old
// peer's client gets its time before the first data.
func (c *served) announce(random int64) error {
	c.out.first, c.out.gated = !c.duplex, !c.duplex
	if _, lost := c.m.add(c.id, c); lost != nil {
		return lost
	}
	c.m.sender.tellThen(dialResponse(random, c.id, ""), func() {
		if !c.duplex {
			time.AfterFunc(firstData, c.out.open)
		}
	})
	return nil
}

func (c *served) receive(batch []tunnel.Chunk) {
	if c.out.first {
		c.out.open()
	}
	if !c.in.put(batch) {
		c.in.onStall()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.closed && c.duplex && !c.end.forgotten() {
		// It does not know that nobody listens any more.
		c.m.sender.tell(closeResponse(c.id, resetText(tunnel.CodeCancelled)))
		c.finish()
	}
}

// CloseWrite implements tunnel.Conn; see served for what it can do.
func (c *served) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respond("")
	return nil
}

// respond queues CLOSE_RSP after the data.
func (c *served) respond(text string) {
	if c.end.take(queue) {
		c.out.finish(closeResponse(c.id, text), func() { c.responded(text != "") })
	}
}

// responded is called once CLOSE_RSP was sent.
func (c *served) responded(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reset || !c.duplex || c.end.phase == finishing {
		c.finish()
	}
}

// finish makes the peer's direction end and forgets the connection; what the
// peer sent can still be read, for as long as linger lets it.
func (c *served) finish() {
	if !c.end.take(forget) {
		return
	}
	if c.end.phase == over {
		c.end.stop()
	}
	c.in.finish(io.EOF)
	c.m.remove(c.id)
}

// closeRequested is called for CLOSE_REQ, and where the peer ends its stream.
func (c *served) closeRequested() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.take(peerEnd) {
		if c.duplex && !c.end.forgotten() { // a second time: it does not know the connection any more
			c.reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
		}
		return
	}
	c.out.open()
	c.in.finish(io.EOF)
	switch {
	case !c.duplex:
		c.end.puts = c.out.count()
		c.end.after(closeQuiet, c.tick)
	case c.end.phase == finishing && c.out.onSent(func() { c.responded(false) }):
		c.finish()
	}
}

// tick decides whether the destination is done with a connection that the peer
// closed.
func (c *served) tick() {
	_, drained := c.in.state()
	puts := c.out.count()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.phase != answering {
		return
	}
	moved, watched := c.end.tick(puts, closeQuiet)
	if (moved || !drained) && watched < closeCap {
		c.end.after(closeQuiet, c.tick)
		return
	}
	c.respond("")
	c.out.silence()
	c.linger()
}

// cancelled is called when the peer has given the connection up at once.
func (c *served) cancelled() {
	_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
}

// Close implements net.Conn. What was written is still sent, in the
// background; what comes is dropped.
func (c *served) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.closed {
		return nil
	}
	c.end.closed = true
	c.in.fail(net.ErrClosed)
	c.out.end(net.ErrClosed)
	c.respond("")
	c.end.stop()
	if c.duplex && c.end.phase == closing {
		c.end.after(closeTimeout, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.finish()
		})
	}
	return nil
}

// CloseFor implements tunnel.Conn. The protocol has no place for the cause.
func (c *served) CloseFor(error) error { return c.Close() }

// Reset implements tunnel.Conn. What was written before is still sent, as
// upstream's agents do: a destination's reset may come right after its answer.
func (c *served) Reset(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset(cause)
	return nil
}

func (c *served) reset(cause error) {
	code := tunnel.CodeOf(cause)
	if c.end.closed {
		return
	}
	c.end.closed = true
	c.in.fail(&tunnel.ResetError{Code: code})
	c.out.end(&tunnel.ResetError{Code: code})
	c.end.stop()
	switch c.end.phase {
	case flowing, answering:
		c.respond(resetText(code))
	case closing, finishing: // it had ended its direction in order; now tell the rest
		c.m.sender.tell(closeResponse(c.id, resetText(code)))
		c.out.fail(&tunnel.ResetError{Code: code}) // that went ahead of it
		c.finish()
	}
}

// orphaned is called when the peer's stream is dead. It returns false where
// the peer had not closed the connection before.
func (c *served) orphaned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.peerEnded() {
		return false
	}
	c.out.silence()
	if !c.end.closed {
		c.linger()
	}
	return true
}

// linger bounds what is left of a connection whose peer is gone.
func (c *served) linger() {
	c.end.after(closeLinger, func() { c.cancel(&tunnel.ResetError{Code: tunnel.CodeCancelled}) })
}
