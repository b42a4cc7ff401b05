package legacy

import (
	"io"
	"net"
	"time"

	"konnectivity/tunnel"
)

const (
	// answerWait is how long CloseWrite holds CLOSE_REQ back for an answer of
	// which nothing has come yet: the time konnectivity-client itself waits
	// for the end (its CloseTimeout).
	answerWait = 10 * time.Second

	// answerQuiet is how long an answer may pause, after CloseWrite, until it
	// is taken for complete; also the tick at which that is looked at. An
	// idle keep-alive connection that its client closes is held this long.
	answerQuiet = 2 * time.Second

	// settleTime is how long Close holds CLOSE_REQ back when data was sent
	// last. Upstream's agents drop what they have not yet written to the
	// destination when CLOSE_REQ comes (pkg/agent/client.go, cleanFunc).
	settleTime = 500 * time.Millisecond

	// closeTimeout is how long a peer may take to confirm an end.
	closeTimeout = 10 * time.Second
)

// opened is a connection that this side asked for: the server's, at an agent.
//
// An old agent takes CLOSE_REQ as the end of both directions. So CloseWrite
// sends nothing at first: the agent goes on delivering the answer, and ends
// the connection itself (CLOSE_RSP) once the destination does. Only when no
// answer comes for answerWait, or it pauses for answerQuiet, CLOSE_REQ is
// sent; everything the agent had read by then still arrives. A destination
// that answers only after it saw the end of the request gets its chance with
// agents that know half-close (see duplex in metadata.go), for which CLOSE_REQ
// and CLOSE_RSP end one direction each.
type opened struct {
	stream
	random int64

	// Guarded by mu.
	hasty    bool // nobody wants an answer
	answered bool // something came since CloseWrite, or since what was sent last
}

func newOpened(m *mux, random, id int64, duplex bool, address string) *opened {
	c := &opened{random: random}
	c.init(m, id, duplex, c.Reset)
	c.local = tunnel.Addr{Net: "tcp", Text: m.localAddr}
	c.remote = tunnel.Addr{Net: "tcp", Text: address}
	return c
}

func (c *opened) receive(batch []tunnel.Chunk) {
	c.lastUp.Store(false)
	if c.in.put(batch) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.end.closed && c.duplex {
			c.abandon() // it does not know that nobody listens
		}
		return
	}
	c.in.onStall()
}

// CloseWrite implements tunnel.Conn; see opened for what it can do.
func (c *opened) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.writable() {
		return nil
	}
	c.out.end(net.ErrClosed)
	switch {
	case c.duplex:
		c.sendClose()
	case c.hasty:
		c.settle()
	default:
		c.end.take(hold)
		c.end.puts, _ = c.in.state()
		c.answered = !c.lastUp.Load() // what was sent last had an answer
		c.end.after(answerQuiet, c.tick)
	}
	return nil
}

// hasten says that nobody waits for an answer any more, so that CloseWrite need
// not, whether it comes before or after. What was written is still sent.
func (c *opened) hasten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hasty = true // also for a CloseWrite that is yet to come
	if c.end.phase == holding {
		c.settle()
	}
}

// settle sends CLOSE_REQ after the data has had time to reach the destination.
func (c *opened) settle() {
	c.hasty = true
	c.end.take(hold)
	c.end.after(settleTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendClose()
	})
}

// tick decides whether the answer on a half-closed connection is complete.
func (c *opened) tick() {
	puts, _ := c.in.state()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.phase != holding || c.hasty { // it was due as settle took its place
		return
	}
	moved, waited := c.end.tick(puts, answerQuiet)
	c.answered = c.answered || moved
	if moved || !c.answered && waited < answerWait {
		c.end.after(answerQuiet, c.tick)
		return
	}
	c.sendClose()
}

// sendClose queues CLOSE_REQ after the data.
func (c *opened) sendClose() {
	if !c.end.take(queue) {
		return
	}
	c.out.finish(closeRequest(c.id), nil)
	if !c.duplex || c.end.closed {
		c.end.after(closeTimeout, c.giveUp)
	}
	c.finishIfBoth()
}

// giveUp forgets a connection whose end the agent does not confirm.
func (c *opened) giveUp() {
	puts, _ := c.in.state()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.forgotten() {
		return
	}
	if moved, _ := c.end.tick(puts, closeTimeout); moved && !c.end.closed { // it still delivers
		c.end.after(closeTimeout, c.giveUp)
		return
	}
	if c.duplex && c.abandon() { // it takes CLOSE_REQ for half of it, and its destination stays
		return
	}
	c.finish(&tunnel.ResetError{Code: tunnel.CodeTimeout})
}

// finish frees the connection; the reader gets what is there and then err.
func (c *opened) finish(err error) {
	c.end.take(forget)
	c.end.stop()
	c.in.finish(err)
	if err == io.EOF {
		err = &tunnel.ResetError{Code: tunnel.CodePeerReset}
	}
	c.out.fail(err)
	c.m.remove(c.id)
}

// responded is called for CLOSE_RSP.
func (c *opened) responded(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.end.forgotten():
	case text != "":
		c.finish(&tunnel.ResetError{Code: resetCode(text)})
	case c.duplex && c.end.phase != told:
		c.end.take(peerEnd)
		c.in.finish(io.EOF)
		c.finishIfBoth()
	default:
		c.finish(io.EOF)
	}
}

// finishIfBoth frees a connection of which both directions have ended, once
// that has been sent.
func (c *opened) finishIfBoth() {
	if c.end.phase == finishing && c.out.onSent(c.bothSent) {
		c.finish(io.EOF)
	}
}

func (c *opened) bothSent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.forgotten() {
		c.finish(io.EOF)
	}
}

// Close implements net.Conn. What was written is still sent, in the
// background; what comes is dropped.
func (c *opened) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.closed {
		return nil
	}
	c.end.closed = true
	c.out.end(net.ErrClosed)
	c.in.fail(net.ErrClosed)
	switch c.end.phase {
	case closing, finishing:
		c.end.after(closeTimeout, c.giveUp)
	case flowing, holding, answering:
		if c.lastUp.Load() && !c.duplex {
			c.settle()
		} else {
			c.sendClose()
		}
	}
	return nil
}

// CloseFor implements tunnel.Conn. The protocol has no place for the cause.
func (c *opened) CloseFor(error) error { return c.Close() }

// Reset implements tunnel.Conn. The agent is told nothing of the cause, since
// the protocol has no place for it.
func (c *opened) Reset(cause error) error {
	err := &tunnel.ResetError{Code: tunnel.CodeOf(cause)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end.closed = true
	c.kill(err)
	c.abandon()
	return nil
}

// abandon tells the agent to drop the connection, unless the agent was told
// already or no longer knows it, and returns whether it told it.
func (c *opened) abandon() bool {
	if !c.end.take(tell) {
		return false
	}
	c.out.fail(net.ErrClosed)
	if c.duplex {
		c.m.sender.tell(dialClose(c.random))
	} else {
		c.m.sender.tell(closeRequest(c.id))
	}
	c.end.after(closeTimeout, c.giveUp)
	return true
}
