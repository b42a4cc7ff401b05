package legacy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// conn is one end of a connection: the opener's, which asked for it, or the server's,
// which serves it. Its closer decides how it ends; doc.go has the tables.
type conn struct {
	m          *mux
	id         int64
	in         recvQueue
	out        sendQueue
	local      tunnel.Addr
	remote     tunnel.Addr
	unanswered atomic.Bool // data was written after data last came

	random int64             // of an opener: the number of its dial
	cancel func(cause error) // of a server: ends the relay that the conn belongs to
	far    tunnel.Conn       // of a server: the other end of that relay

	mu    sync.Mutex
	end   closer
	timer *time.Timer // fires at end.next; nil: never armed
}

// newOpener returns the connection that a dial to address has brought. random is the
// dial's number, id the connection's.
func newOpener(m *mux, random, id int64, duplex bool, address string) *conn {
	c := newConn(m, id, openers[duplex])
	c.random = random
	c.local = tunnel.Addr{Net: "tcp", Text: m.localAddr}
	c.remote = tunnel.Addr{Net: "tcp", Text: address}
	return c
}

// newServer returns a connection that the peer asked for. cancel ends the relay that it
// belongs to.
func newServer(m *mux, id int64, duplex bool, address string, cancel func(error)) *conn {
	c := newConn(m, id, servers[duplex])
	c.cancel = cancel
	c.local = tunnel.Addr{Net: "tcp", Text: address}
	c.remote = tunnel.Addr{Net: "tcp", Text: m.remoteAddr}
	return c
}

func newConn(m *mux, id int64, r *role) *conn {
	c := &conn{m: m, id: id, end: closer{role: r}}
	c.in.init()
	c.in.limits, c.in.metrics, c.in.segment = &m.limits, m.metrics, m.inbound
	c.in.onStall = func() {
		m.metrics.Stalled(m.inbound)
		_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeStalled})
	}
	c.out.init(m.sender, id)
	return c
}

// announce adds a server's connection to the mux and sends DIAL_RSP. The first data for
// an old peer waits: see gate.
func (c *conn) announce(random int64) error {
	old := !c.end.duplex
	asks := 0
	if c.in.block { // a client's stream
		asks = questions
	}
	if old {
		c.out.shut(asks)
	}
	if _, lost := c.m.add(c.id, c); lost != nil {
		return lost
	}
	c.m.sender.tellThen(dialResponse(random, c.id, ""), func() {
		if old && asks == 0 {
			time.AfterFunc(firstData, c.out.open)
		}
	})
	return nil
}

// receive takes a batch of DATA. Only the mux's read loop calls it.
func (c *conn) receive(batch []tunnel.Chunk) {
	c.unanswered.Store(false)
	if c.out.gate.old {
		c.out.spoken() // before put, whose reader may reply before it returns
	}
	kept := c.in.put(batch) // before open, which lets a waiting end pass: data behind an end is dropped
	if c.out.gate.old {
		c.out.open()
	}
	if !kept {
		c.in.onStall()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.closed {
		c.step(arrives, &tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
}

// peerEnds is called for the peer's closing packet, and where it ends its stream. The
// reader gets the received bytes, then the end.
func (c *conn) peerEnds() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.server && c.end.duplex && (c.end.state == answering || c.end.state == finishing) {
		c.reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}) // a second time: it no longer knows the connection
		return
	}
	c.out.open()
	c.in.finish(io.EOF)
	c.step(peerEnds, nil)
}

// closeRequested is called for CLOSE_REQ. konnectivity-client sends it from Close, so
// the client awaits no answer, and the other end of the relay need not either.
func (c *conn) closeRequested() {
	c.peerEnds()
	hasten(c.far)
}

// hasten hastens the conn that is c or lies under it, if there is one.
func hasten(c tunnel.Conn) {
	if under, ok := tunnel.Under[*conn](c); ok {
		under.hasten()
	}
}

// peerResets is called of an opener where the peer has dropped the connection.
func (c *conn) peerResets(cause error) { c.fire(peerResets, cause) }

// hasten keeps CloseWrite, whether it comes before or after, from waiting for an
// answer. Bytes that were written are still sent.
func (c *conn) hasten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step(hastens, nil)
}

// orphaned is called when the peer's stream is dead. It returns false where
// the peer had not closed the connection before.
func (c *conn) orphaned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step(orphaned, nil)
	return c.end.peerEnded()
}

// lost is called when the gRPC stream is gone. Received bytes can still be read.
func (c *conn) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end.lose()
	c.arm()
	c.in.finish(err)
	c.out.fail(err)
}

// step gives an event to the closer, and carries its actions out. cause is the reason;
// nil: in order. c.mu is held, here and below.
func (c *conn) step(e event, cause error) {
	before := c.end.next
	batches, drained := c.in.state()
	f := facts{unanswered: c.unanswered.Load(), unread: !drained, traffic: batches}
	if c.end.server {
		f.traffic = c.out.count()
	}
	do := c.end.step(e, f, time.Now())
	if do&drop != 0 {
		c.m.sender.tell(c.dropPacket(cause))
	}
	if do&discard != 0 {
		c.out.fail(net.ErrClosed)
	}
	if do&(queueClose|queueReset) != 0 {
		c.out.finish(c.closePacket(do, cause), c.closeSent)
	}
	if do&mute != 0 {
		c.out.silence()
	}
	if do&forget != 0 {
		c.forget(cause)
	}
	if do&cancel != 0 {
		c.cancel(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
	if c.end.next != before {
		c.arm()
	}
}

func (c *conn) closePacket(do action, cause error) *client.Packet {
	switch {
	case !c.end.server:
		return closeRequest(c.id)
	case do&queueReset != 0:
		return closeResponse(c.id, tunnel.CodeOf(cause).String())
	default:
		return closeResponse(c.id, "")
	}
}

func (c *conn) dropPacket(cause error) *client.Packet {
	switch {
	case c.end.server:
		return closeResponse(c.id, tunnel.CodeOf(cause).String())
	case c.end.duplex:
		return dialClose(c.random)
	default:
		return closeRequest(c.id)
	}
}

// forget removes a connection that its peer no longer knows: the reader
// gets the received bytes, then cause or the end.
func (c *conn) forget(cause error) {
	switch {
	case c.end.server:
		c.in.finish(io.EOF)
	case cause == nil:
		c.in.finish(io.EOF)
		c.out.fail(&tunnel.ResetError{Code: tunnel.CodePeerReset})
	default:
		c.in.finish(cause)
		c.out.fail(cause)
	}
	c.m.remove(c.id)
}

// arm sets the timer to the closer's next look.
func (c *conn) arm() {
	switch {
	case c.end.next.IsZero():
		if c.timer != nil {
			c.timer.Stop()
		}
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Until(c.end.next), func() { c.fire(due, &tunnel.ResetError{Code: tunnel.CodeTimeout}) })
	default:
		c.timer.Reset(time.Until(c.end.next))
	}
}

// closeSent is called once the closing packet was given to gRPC.
func (c *conn) closeSent() { c.fire(sent, nil) }

func (c *conn) fire(e event, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step(e, cause)
}

// CloseWrite implements tunnel.Conn. A server sends CLOSE_RSP after the data: to an old
// peer that is the end of both directions, and it must come, since the peer's client may
// wait for the end of the answer. An opener sends CLOSE_REQ; with an old peer, only once
// the answer counts as complete.
func (c *conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.writable() {
		c.out.end(net.ErrClosed)
		c.step(closesWrite, nil)
	}
	return nil
}

// Close implements net.Conn. Bytes that were written are still sent, in the
// background; bytes that arrive are dropped.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.closed {
		c.out.end(net.ErrClosed)
		c.in.fail(net.ErrClosed)
		c.step(closes, nil)
	}
	return nil
}

// CloseFor implements tunnel.Conn. The protocol has no place for the cause.
func (c *conn) CloseFor(error) error { return c.Close() }

// Reset implements tunnel.Conn. A server still sends the bytes that were written before, as
// upstream's agents do: a destination's reset may come right after its answer. An opener
// does not send the cause to its agent: the protocol has no place for it.
func (c *conn) Reset(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset(cause)
	return nil
}

func (c *conn) reset(cause error) {
	err := &tunnel.ResetError{Code: tunnel.CodeOf(cause)}
	switch {
	case !c.end.server:
		c.out.fail(err)
	case c.end.closed:
		return
	default:
		c.out.end(err)
	}
	c.in.fail(err)
	c.step(resets, err)
}

// Failed implements tunnel.Conn.
func (c *conn) Failed() error { return c.in.failure() }

// In implements tunnel.Conn: a conn is both sides of itself.
func (c *conn) In() tunnel.Source { return c }

// Out implements tunnel.Conn.
func (c *conn) Out() tunnel.Sink { return c }

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.in.read(p) }

// ReadChunks implements tunnel.Source.
func (c *conn) ReadChunks(dst []tunnel.Chunk) (int, error) { return c.in.take(dst) }

// Deliver implements tunnel.Source. What comes has to wait in recvQueue anyway,
// which is all the flow control there is.
func (c *conn) Deliver(tunnel.Receiver) bool { return false }

// Rest implements tunnel.Source.
func (c *conn) Rest(tunnel.Receiver) bool { return false }

// Write implements net.Conn. It blocks while the peer does not take more; what
// it has accepted is sent unless the connection is reset.
func (c *conn) Write(p []byte) (int, error) {
	done := 0
	for {
		n := min(len(p)-done, tunnel.ChunkSize)
		if err := c.WriteChunks([]tunnel.Chunk{tunnel.CopyChunk(p[done : done+n])}); err != nil {
			return done, err
		}
		if done += n; done == len(p) {
			return done, nil
		}
	}
}

// WriteChunks implements tunnel.Sink.
func (c *conn) WriteChunks(src []tunnel.Chunk) error {
	c.unanswered.Store(true)
	for i, chunk := range src {
		src[i] = tunnel.Chunk{}
		if err := c.out.put(chunk); err != nil {
			tunnel.ReleaseAll(src[i+1:])
			return err
		}
	}
	return nil
}

// Nonblocking implements tunnel.Sink. To send a little is to queue it, which
// may block.
func (c *conn) Nonblocking() bool { return false }

// TryWrite implements tunnel.Sink.
func (c *conn) TryWrite(tunnel.Chunk) int { return 0 }

// Flush implements tunnel.Sink.
func (c *conn) Flush() {}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(t)
	c.out.setDeadline(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(t)
	return nil
}
