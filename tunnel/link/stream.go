package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// Stream is one connection on a link. It is a tunnel.Conn and passes chunks
// by reference.
type Stream struct {
	ses *Session
	id  uint64

	budget *Budget // what unread bytes count against

	local, remote net.Addr // set before the stream is handed out

	// The rest is guarded by ses.mu.

	readCond  sync.Cond
	writeCond sync.Cond

	opening bool        // OPEN sent, OPENED not yet received
	dialing bool        // OPEN received, OPENED not yet sent
	success bool        // OPENED, sent or received, told of it
	opened  *openedMsg  // the answer to our OPEN
	cancel  func(error) // of the dial made for the peer's OPEN
	err     error       // why both directions are void; reads drain first
	closed  bool        // Close or Reset was called here

	// Receiving.
	recv         recvFlow
	queue        []tunnel.Chunk // received, not yet read
	tailOpen     bool           // the last chunk of queue is ours to append to
	inHand       int            // bytes returned by ReadChunks, consumed by the next call
	finRecvd     bool
	delivery     *delivery // nil: somebody reads
	readDeadline deadline

	// Sending.
	send          sendFlow
	writing       bool // a Write is under way; others wait for it
	turn          bool // the link is ours to write to
	pending       pending
	finQueued     bool
	writeDeadline deadline
}

// errDeadline is what net.Conn promises for an expired deadline.
var errDeadline error = os.ErrDeadlineExceeded

func newStream(ses *Session, id uint64, budget *Budget) *Stream {
	st := &Stream{ses: ses, id: id, budget: budget}
	st.readCond.L = &ses.mu
	st.writeCond.L = &ses.mu
	st.recv = newRecvFlow(budget.initialWindow())
	return st
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
	if st.finRecvd {
		return nil
	}
	return st.err
}

// Read implements net.Conn. It waits for data, the end, an error or the read
// deadline.
func (st *Stream) Read(p []byte) (int, error) {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if err := st.waitReadable(len(p) == 0); err != nil || len(p) == 0 {
		return 0, err
	}
	n := 0
	for n < len(p) && len(st.queue) > 0 {
		chunk := st.queue[0]
		m := copy(p[n:], chunk.Bytes())
		n += m
		if m == chunk.Len() {
			chunk.Release()
			st.dequeue(1)
		} else {
			st.queue[0] = chunk.Slice(m, chunk.Len())
		}
	}
	st.consumed(n)
	return n, nil
}

// ReadChunks implements tunnel.Source. The bytes it returns count against the
// window until the next call, so what a caller holds is bounded too.
func (st *Stream) ReadChunks(dst []tunnel.Chunk) (int, error) {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	st.releaseInHand()
	if st.endTurn() {
		return 0, nil
	}
	return st.take(dst)
}

// releaseInHand gives credit back for what the last call returned.
func (st *Stream) releaseInHand() {
	if n := st.inHand; n > 0 {
		st.inHand = 0
		st.consumed(n)
	}
}

// take waits for data and moves it to dst, or returns why there is none and
// never will be.
func (st *Stream) take(dst []tunnel.Chunk) (int, error) {
	if err := st.waitReadable(false); err != nil {
		return 0, err
	}
	n := copy(dst, st.queue)
	for _, chunk := range dst[:n] {
		st.inHand += chunk.Len()
	}
	st.dequeue(n)
	return n, nil
}

// readable says whether a read would not have to wait.
func (st *Stream) readable() bool {
	return st.closed || st.readDeadline.expired || len(st.queue) > 0 || st.finRecvd || st.err != nil
}

// waitReadable returns nil once the queue has something, or why it never will.
func (st *Stream) waitReadable(probe bool) error {
	for {
		switch {
		case st.closed:
			return net.ErrClosed
		case st.readDeadline.expired:
			return errDeadline
		case len(st.queue) > 0 || probe:
			return nil
		case st.finRecvd:
			return io.EOF
		case st.err != nil:
			return st.err
		}
		st.readCond.Wait()
	}
}

// dequeue drops the first n chunks from the queue; a queue that is empty holds
// no memory.
func (st *Stream) dequeue(n int) {
	if n == len(st.queue) {
		st.queue, st.tailOpen = nil, false
		return
	}
	st.queue = st.queue[n:]
}

// consumed gives credit back for n bytes and queues a CREDIT when it is due.
func (st *Stream) consumed(n int) {
	ses := st.ses
	st.budget.add(-n)
	ses.unread -= n
	if st.err != nil || st.finRecvd {
		st.recv.consumed += uint64(n) // no more is coming, so no more credit
		return
	}
	if limit, grant := st.recv.consume(n, time.Now(), ses.rttFloor.get(), st.budget.pressure()); grant {
		st.pending.credit = limit
		ses.queuePending(st)
		ses.wakeFlusher()
	}
}

// Write implements net.Conn. It waits for credit, for its turn on the link, or
// for the write deadline. n tells how much was handed to the link.
func (st *Stream) Write(p []byte) (n int, err error) {
	if err := st.beginWrite(); err != nil {
		return 0, err
	}
	defer st.endWrite()
	for n < len(p) {
		m, err := st.writeSome(p[n:])
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
	if err := st.beginWrite(); err != nil {
		return err
	}
	defer st.endWrite()
	for len(src) > 0 {
		if src[0].Len() == 0 {
			src[0].Release()
			src[0] = tunnel.Chunk{}
			src = src[1:]
			continue
		}
		if err := st.writeChunks(src); err != nil {
			return err
		}
	}
	return nil
}

// beginWrite takes the stream for one Write, so that the bytes of two do not
// mix.
func (st *Stream) beginWrite() error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	for {
		if err := st.writable(); err != nil {
			return err
		}
		if !st.writing {
			st.writing = true
			return nil
		}
		st.writeCond.Wait()
	}
}

func (st *Stream) endWrite() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.writing = false
	st.writeCond.Broadcast()
}

// writable is nil while the direction away from us is open.
func (st *Stream) writable() error {
	switch {
	case st.closed:
		return net.ErrClosed
	case st.err != nil:
		return st.err
	case st.finQueued:
		return errWriteClosed
	case st.writeDeadline.expired:
		return errDeadline
	default:
		return nil
	}
}

var errWriteClosed = errors.New("write after CloseWrite")

// CloseWrite implements tunnel.Conn. It does not wait for the FIN to be sent.
func (st *Stream) CloseWrite() error {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case st.closed:
		return net.ErrClosed
	case st.err != nil:
		return st.err
	case st.finQueued:
		return nil
	}
	st.queueFin()
	ses.wakeFlusher()
	return nil
}

func (st *Stream) queueFin() {
	st.finQueued = true
	st.pending.fin = true
	st.ses.queuePending(st)
	if st.finRecvd { // both directions are over (§4)
		st.ses.forget(st)
	}
	st.writeCond.Broadcast()
}

// Close implements net.Conn: what was written is still delivered, then the
// peer reads the end; what was not read is dropped, and a peer that goes on
// writing is told to stop. It does not block on the network.
func (st *Stream) Close() error {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed = true
	if st.err == nil {
		if !st.finQueued {
			st.queueFin()
		}
		if !st.finRecvd {
			st.queueReset(tunnel.CodeCancelled)
		}
	}
	st.drop(errClosed) // before the peer can answer
	ses.wakeFlusher()
	return nil
}

// errClosed ends what waits on a stream that was closed on this side.
var errClosed = net.ErrClosed

// Reset implements tunnel.Conn.
func (st *Stream) Reset(cause error) error {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed = true
	if st.err == nil && !(st.finQueued && st.finRecvd) {
		st.pending.discardData(ses)
		st.queueReset(tunnel.CodeOf(cause))
	}
	st.drop(&tunnel.ResetError{Code: tunnel.CodeOf(cause)})
	ses.wakeFlusher()
	return nil
}

func (st *Stream) queueReset(code tunnel.Code) {
	st.pending.reset, st.pending.resetCode = true, code
	st.ses.queuePending(st)
}

// drop ends the stream on this side: nothing received counts any more, all who
// wait are told.
func (st *Stream) drop(cause error) {
	if st.err == nil {
		st.err = cause
	}
	st.discardUnread()
	st.readDeadline.stop()
	st.writeDeadline.stop()
	st.ses.forget(st)
	st.wakeAll()
}

// discardUnread drops what was received and not read, and what it held of the
// budget.
func (st *Stream) discardUnread() {
	n := st.recv.unread()
	st.recv.consumed += uint64(n)
	st.inHand = 0
	st.budget.add(-n)
	st.ses.unread -= n
	tunnel.ReleaseAll(st.queue)
	st.queue, st.tailOpen = nil, false
}

// wakeAll tells everybody that the stream has failed.
func (st *Stream) wakeAll() {
	st.tellFailure()
	st.wakeReader()
	st.writeCond.Broadcast()
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
	if st.closed {
		return net.ErrClosed
	}
	st.readDeadline.set(t, &st.readCond)
	return nil
}

// SetWriteDeadline implements net.Conn. It bounds the wait for credit and for
// a turn; bytes that are already being written to the link are not taken back.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.closed {
		return net.ErrClosed
	}
	st.writeDeadline.set(t, &st.writeCond)
	return nil
}
