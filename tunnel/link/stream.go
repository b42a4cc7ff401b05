package link

import (
	"io"
	"net"
	"time"

	"konnectivity/tunnel"
)

// Stream is one connection on a link. It is a tunnel.Conn and passes chunks
// by reference.
type Stream struct {
	// Immutable once the stream is handed out.

	ses           *Session
	budget        *Budget // that unread bytes count in
	local, remote net.Addr

	// Guarded by ses.mu.

	state   state
	opened  *openedMsg  // the answer to our OPEN, until the dial takes it
	cancel  func(error) // ends the connection made for the peer's OPEN
	recv    recvHalf
	send    sendHalf
	carrier carrier
	looked  uint64 // bytes carried, both ways, as Bulk saw last
}

func newStream(ses *Session, id uint64, budget *Budget) *Stream {
	st := &Stream{ses: ses, budget: budget}
	st.recv.cond.L, st.send.cond.L = &ses.mu, &ses.mu
	st.recv.credit = newRecvCredit(firstWindow(budget))
	st.send.id = id
	return st
}

func (st *Stream) id() uint64 { return st.send.id }

// onLocked takes the stream to the state that e leads to. It removes a closed stream
// from the books; frames for it are ignored from then on.
func (st *Stream) onLocked(e event) {
	next := st.state.after(e)
	if next == idle {
		panic("link: a stream that is " + st.state.String() + " was taken further")
	}
	ses := st.ses
	if next == ended && !st.awaitsAcksLocked() {
		next = closed
	}
	st.state = next
	switch next {
	case ended:
		ses.streams.awaitAcks(st, time.Now())
	case closed:
		st.carrier.releaseMemory(st.budget)
		ses.sender.queue.orphan(&st.send)
		if ses.streams.remove(st) && ses.streams.count() == 0 {
			ses.idleCond.Broadcast()
		}
	}
}

// LocalAddr is the address the far end's connection is made from, as far as
// the peer told.
func (st *Stream) LocalAddr() net.Addr { return st.local }

// RemoteAddr is the destination, as far as the peer told; of a stream that the
// peer opened, it is the peer's address.
func (st *Stream) RemoteAddr() net.Addr { return st.remote }

// In implements tunnel.Conn: a stream is both sides of itself.
func (st *Stream) In() tunnel.Source { return st }

// Out implements tunnel.Conn.
func (st *Stream) Out() tunnel.Sink { return st }

// Failed implements tunnel.Conn.
func (st *Stream) Failed() error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.recv.end == io.EOF {
		return nil
	}
	return st.recv.end
}

// Struck returns the reset by the peer, or the loss of the link, also behind an end in order;
// nil: the stream has met with neither. It is for tunnel.Relay.
func (st *Stream) Struck() error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if reset, ok := st.send.end.(*tunnel.ResetError); ok {
		return reset
	}
	return nil
}

// Read implements net.Conn. It waits for data, the end, an error or the read
// deadline.
func (st *Stream) Read(p []byte) (int, error) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if err := st.recv.wait(len(p) == 0); err != nil || len(p) == 0 {
		return 0, err
	}
	n := st.recv.queue.Read(p)
	st.consumedLocked(n)
	return n, nil
}

// ReadChunks implements tunnel.Source. The bytes it returns count against the
// window until the next call, so what a caller holds is bounded too.
func (st *Stream) ReadChunks(dst []tunnel.Chunk) (int, error) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if n := st.recv.inHand; n > 0 { // what the last call returned
		st.recv.inHand = 0
		st.consumedLocked(n)
	}
	if st.recv.endTurn() {
		return 0, nil
	}
	if err := st.recv.wait(false); err != nil {
		return 0, err
	}
	return st.recv.take(dst), nil
}

// consumedLocked takes in that n bytes were read, and queues CREDIT when it is due.
func (st *Stream) consumedLocked(n int) {
	ses := st.ses
	st.budget.Give(n)
	ses.count.unread -= n
	now := time.Now()
	alone := ses.alone(st.recv.credit.isBulk(now), now)
	if st.recv.end != nil {
		st.recv.credit.consumed += uint64(n) // no more is coming, so no more credit
		return
	}
	if limit, grant := st.recv.credit.consume(n, now, ses.alive.floor.get(), st.budget.Pressure(), alone); grant {
		st.send.out.credit = limit
		st.queueLocked()
	}
}

// queueLocked queues the frames in the outbox.
func (st *Stream) queueLocked() { st.ses.sender.push(&st.send) }

// Write implements net.Conn. It waits for credit, for its turn on the link, or
// for the write deadline. n tells how much was handed to the link.
func (st *Stream) Write(p []byte) (n int, err error) {
	if err := st.send.beginWrite(); err != nil {
		return 0, err
	}
	defer st.send.endWrite()
	for n < len(p) {
		m, err := st.ses.sender.writeSome(&st.send, p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// WriteChunks implements tunnel.Sink.
func (st *Stream) WriteChunks(src []tunnel.Chunk) error {
	defer tunnel.ReleaseAll(src)
	if err := st.send.beginWrite(); err != nil {
		return err
	}
	defer st.send.endWrite()
	for len(src) > 0 {
		if src[0].Len() == 0 {
			src[0].Release()
			src[0] = tunnel.Chunk{}
			src = src[1:]
			continue
		}
		if err := st.ses.sender.writeChunks(&st.send, src); err != nil {
			return err
		}
	}
	return nil
}

// Nonblocking implements tunnel.Sink. TryWrite takes nothing on a link without a write
// buffer; CloseWrite never blocks.
func (st *Stream) Nonblocking() bool { return true }

// TryWrite implements tunnel.Sink: it takes all of c or nothing. It encrypts into the
// write buffer, which does not block, and only while the turn is free.
func (st *Stream) TryWrite(c tunnel.Chunk) int { return st.ses.sender.tryWrite(&st.send, c) }

// Flush implements tunnel.Sink.
func (st *Stream) Flush() { st.ses.sender.flush() }

// CloseWrite implements tunnel.Conn. It does not wait for the FIN to be sent.
func (st *Stream) CloseWrite() error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	switch st.send.end {
	case nil:
		st.sendFinLocked()
		return nil
	case errWriteClosed:
		return nil
	default:
		return st.send.end
	}
}

func (st *Stream) sendFinLocked() {
	st.send.end = errWriteClosed
	st.send.out.fin = true
	st.queueLocked()
	st.send.cond.Broadcast()
	st.onLocked(sendsFin)
	st.resetBehindLocked()
}

// sendResetLocked ends both directions for the peer. Its caller ends them for the holder.
func (st *Stream) sendResetLocked(code tunnel.Code) {
	st.send.out.reset, st.send.out.resetCode = true, code
	st.queueLocked()
	st.onLocked(sendsReset)
}

// Close implements net.Conn. The peer still gets the bytes written before, then the end.
// Unread bytes are dropped, and a peer that goes on writing is reset. Close does not
// block on the network.
func (st *Stream) Close() error { return st.closeFor(tunnel.CodeCancelled) }

// CloseFor implements tunnel.Conn.
func (st *Stream) CloseFor(cause error) error { return st.closeFor(tunnel.CodeOf(cause)) }

func (st *Stream) closeFor(code tunnel.Code) error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.state == open || st.state == halfClosedRemote {
		st.sendFinLocked()
	}
	if st.state != closed && st.state != ended {
		st.sendResetLocked(code)
	}
	st.dropLocked(net.ErrClosed, net.ErrClosed)
	return nil
}

// Reset implements tunnel.Conn.
func (st *Stream) Reset(cause error) error {
	code := tunnel.CodeOf(cause)
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.state != closed {
		st.ses.sender.queue.discard(&st.send)
		st.sendResetLocked(code)
		st.ses.reset = time.Now()
	}
	st.dropLocked(net.ErrClosed, &tunnel.ResetError{Code: code})
	return nil
}

// breachLocked resets a stream whose peer broke the protocol on it (§7).
func (st *Stream) breachLocked() { st.faultLocked(tunnel.CodeProtocol) }

// faultLocked resets a stream for the protocol's or memory's sake.
func (st *Stream) faultLocked(code tunnel.Code) {
	st.resetLocked(code)
	st.ses.count.resets++
}

// resetLocked ends a stream for both the peer and the holder.
func (st *Stream) resetLocked(code tunnel.Code) {
	cause := &tunnel.ResetError{Code: code}
	peerEnded := st.state.peerEnded()
	st.cancelDialLocked(cause)
	st.ses.sender.queue.discard(&st.send)
	st.sendResetLocked(code)
	st.dropLocked(cause, cause)
	st.tellLostLocked(cause, peerEnded)
}

// loseLocked ends a stream that the peer has reset, or whose link is lost. Bytes that came
// before can still be read.
func (st *Stream) loseLocked(cause error) {
	peerEnded := st.state.peerEnded()
	st.cancelDialLocked(cause)
	st.onLocked(receivesReset)
	st.ses.sender.queue.discard(&st.send)
	st.recv.fail(cause)
	st.send.end = cause
	st.recv.tellFailure()
	st.recv.wake()
	st.send.cond.Broadcast()
	st.tellLostLocked(cause, peerEnded)
}

// cancelDialLocked cancels the dial made for the peer's OPEN, if it is in progress.
func (st *Stream) cancelDialLocked(cause error) {
	if st.cancel != nil && !st.state.established() {
		st.cancel(cause)
	}
}

// dropLocked ends the stream on this side. It drops unread bytes, and wakes waiting
// readers and writers with end, and a receiver with cause.
func (st *Stream) dropLocked(end, cause error) {
	if st.recv.closed() {
		return
	}
	st.recv.fail(cause)
	st.recv.tellFailure()
	n := st.recv.abandon(end)
	st.budget.Give(n)
	st.ses.count.unread -= n
	st.send.abandon(end)
	st.recv.wake()
	st.send.cond.Broadcast()
}

// SetDeadline implements net.Conn.
func (st *Stream) SetDeadline(t time.Time) error {
	if err := st.SetReadDeadline(t); err != nil {
		return err
	}
	return st.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	return st.recv.setDeadline(t)
}

// SetWriteDeadline implements net.Conn. It bounds the wait for credit and for
// a turn; bytes that are already being written to the link are not taken back.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	return st.send.setDeadline(t)
}
