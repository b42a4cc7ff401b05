package legacy

import (
	"io"
	"net"
	"sync"
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
	m      *mux
	random int64
	duplex bool

	mu        sync.Mutex
	ended     bool // CloseWrite or Close was called
	closed    bool // Close or Reset was called: whatever comes is dropped
	closeSent bool // CLOSE_REQ is queued
	told      bool // the agent was told to drop it
	hasty     bool // nobody wants an answer
	over      bool // the agent knows it no more
	timer     *time.Timer
	puts      uint64 // of in, at the last tick
	ticks     int
	answered  bool
}

func newOpened(m *mux, random, id int64, duplex bool, address string) *opened {
	c := &opened{m: m, random: random, duplex: duplex}
	c.init(m, id, c.stalled)
	c.local = tunnel.Addr{Net: "tcp", Text: m.localAddr}
	c.remote = tunnel.Addr{Net: "tcp", Text: address}
	return c
}

func (c *opened) receive(batch []tunnel.Chunk) {
	c.lastUp.Store(false)
	if c.in.put(batch) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed && c.duplex && !c.over && !c.told {
			c.abandon() // it does not know that nobody listens
		}
		return
	}
	c.stalled()
}

func (c *opened) stalled() {
	c.m.metrics.Stalled(c.m.inbound)
	_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeStalled})
}

// CloseWrite implements tunnel.Conn; see opened for what it can do.
func (c *opened) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	c.ended = true
	c.out.end(net.ErrClosed)
	switch {
	case c.over:
	case c.duplex:
		c.sendClose()
		c.finishIfBoth()
	case c.hasty:
		c.settle()
	default:
		c.puts, _ = c.in.state()
		c.answered = !c.lastUp.Load() // what was sent last had an answer
		c.after(answerQuiet, c.tick)
	}
	return nil
}

// Hasten says that nobody waits for an answer any more, so that CloseWrite need
// not, be it before or after it. A front that learns of its client's end for
// certain may call it; what was written is still sent.
func (c *opened) Hasten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hasty = true
	if c.ended && !c.duplex && !c.closeSent && !c.over {
		c.settle()
	}
}

// settle sends CLOSE_REQ after the data has had time to reach the destination.
func (c *opened) settle() {
	c.after(settleTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sendClose()
	})
}

// tick decides whether the answer to a half-closed connection is complete.
func (c *opened) tick() {
	puts, _ := c.in.state()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.closeSent {
		return
	}
	c.ticks++
	moved := puts != c.puts
	c.puts, c.answered = puts, c.answered || moved
	if moved || !c.answered && time.Duration(c.ticks)*answerQuiet < answerWait {
		c.after(answerQuiet, c.tick)
		return
	}
	c.sendClose()
}

// sendClose queues CLOSE_REQ after the data.
func (c *opened) sendClose() {
	if c.closeSent || c.over {
		return
	}
	c.closeSent = true
	c.out.finish(closeRequest(c.id), nil)
	if !c.duplex || c.closed {
		c.after(closeTimeout, c.giveUp)
	}
}

// giveUp forgets a connection whose end the agent does not confirm.
func (c *opened) giveUp() {
	puts, _ := c.in.state()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if puts != c.puts && !c.closed { // it still delivers
		c.puts = puts
		c.after(closeTimeout, c.giveUp)
		return
	}
	if c.duplex && !c.told { // it takes CLOSE_REQ for half of it, and its destination stays
		c.abandon()
		return
	}
	c.finish(&tunnel.ResetError{Code: tunnel.CodeTimeout})
}

func (c *opened) after(d time.Duration, f func()) {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(d, f)
}

// finish frees the connection; the reader gets what is there and then err.
func (c *opened) finish(err error) {
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
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
	case c.over:
	case text != "":
		c.finish(&tunnel.ResetError{Code: resetCode(text)})
	case c.duplex && !c.told:
		c.in.finish(io.EOF)
		c.finishIfBoth()
	default:
		c.finish(io.EOF)
	}
}

// finishIfBoth frees a connection of which both directions have ended, once
// that has been sent.
func (c *opened) finishIfBoth() {
	if !c.closeSent || !c.in.finished() || !c.out.onSent(c.bothSent) {
		return
	}
	c.finish(io.EOF)
}

func (c *opened) bothSent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.finish(io.EOF)
	}
}

// Close implements net.Conn. What was written is still sent, in the
// background; what comes is dropped.
func (c *opened) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.ended, c.closed = true, true
	c.out.end(net.ErrClosed)
	c.in.fail(net.ErrClosed)
	switch {
	case c.over:
	case c.closeSent:
		c.after(closeTimeout, c.giveUp)
	case c.lastUp.Load() && !c.duplex:
		c.settle()
	default:
		c.sendClose()
	}
	return nil
}

// Reset implements tunnel.Conn. The agent is told nothing of the cause, since
// the protocol has no place for it.
func (c *opened) Reset(cause error) error {
	err := &tunnel.ResetError{Code: tunnel.CodeOf(cause)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.closed = true, true
	c.kill(err)
	if !c.over && !c.told {
		c.abandon()
	}
	return nil
}

// abandon tells the agent to drop the connection.
func (c *opened) abandon() {
	c.closeSent, c.told = true, true
	c.out.fail(net.ErrClosed)
	if c.duplex {
		c.m.sender.tell(dialClose(c.random))
	} else {
		c.m.sender.tell(closeRequest(c.id))
	}
	c.after(closeTimeout, c.giveUp)
}

func (c *opened) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.lostBoth(err)
}
