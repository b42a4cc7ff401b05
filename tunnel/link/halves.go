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

// The two directions of a stream. Session.mu guards both, and is what their
// conditions wait with.

var errWriteClosed = errors.New("write after CloseWrite")

// recvHalf is the direction toward us.
type recvHalf struct {
	cond     sync.Cond
	credit   recvCredit
	queue    tunnel.ChunkQueue // received, not yet read
	inHand   int               // bytes returned by ReadChunks, consumed by the next call
	end      error             // how the direction ends, behind queue; nil: it has not
	delivery *delivery         // nil: the stream is read
	deadline tunnel.Deadline
	dropped  bool // it was abandoned: nothing that comes counts any more
	taking   bool // the read loop delivers, without the mutex; Detach waits for it
}

// readable reports whether a read would return at once.
func (r *recvHalf) readable() bool {
	return r.end != nil || r.deadline.Passed() || !r.queue.Empty()
}

// wait waits until the queue is not empty, or returns why it stays empty. A probe, which
// asks for no bytes, does not wait.
func (r *recvHalf) wait(probe bool) error {
	for {
		switch {
		case r.closed():
			return net.ErrClosed
		case r.deadline.Passed():
			return os.ErrDeadlineExceeded
		case !r.queue.Empty() || probe:
			return nil
		case r.end != nil:
			return r.end
		}
		r.cond.Wait()
	}
}

// closed reports whether this side has closed the stream.
func (r *recvHalf) closed() bool { return r.end == net.ErrClosed }

// finish takes in the peer's FIN. FIN counts even if the link was lost while its bytes
// were delivered, but not behind bytes that were dropped.
func (r *recvHalf) finish() {
	if !r.dropped {
		r.end = io.EOF
	}
}

// fail ends the direction for cause, behind the queue, unless it has ended before.
func (r *recvHalf) fail(cause error) {
	if r.end == nil {
		r.end = cause
	}
}

// abandon ends the direction at once. It drops the unread bytes and returns their
// number.
func (r *recvHalf) abandon(end error) int {
	r.end, r.dropped = end, true
	n := r.credit.unread()
	r.credit.consumed += uint64(n)
	r.inHand = 0
	r.queue.Clear()
	r.deadline.Stop()
	return n
}

// take moves chunks of the queue to dst.
func (r *recvHalf) take(dst []tunnel.Chunk) int {
	n := r.queue.Take(dst)
	for _, chunk := range dst[:n] {
		r.inHand += chunk.Len()
	}
	return n
}

// keepCopy queues a copy of p, together with its neighbours.
func (r *recvHalf) keepCopy(p []byte) {
	size := 0
	if !r.queue.Empty() { // the reader is behind: gather more in a larger block
		size = tunnel.RecordRoom
	}
	r.queue.PushCopy(p, size)
}

// setDeadline bounds how long a read waits for data.
func (r *recvHalf) setDeadline(t time.Time) error {
	if r.closed() {
		return net.ErrClosed
	}
	r.deadline.Set(t, &r.cond)
	return nil
}

// sendHalf is the direction away from us.
type sendHalf struct {
	id       uint64 // of the stream
	cond     sync.Cond
	credit   sendCredit
	out      outbox
	end      error // why nothing can be written any more; nil: it can
	deadline tunnel.Deadline
	writing  bool // a Write is under way; others wait for it
	turn     bool // the sender has given it the turn
	orphan   bool // the stream is closed, and out is counted in sendQueue.orphans
}

// writable is nil while the direction is open.
func (s *sendHalf) writable() error {
	if s.end == nil && s.deadline.Passed() {
		return os.ErrDeadlineExceeded
	}
	return s.end
}

// beginWrite waits until no other Write is in progress, so that the bytes of two do not
// mix. endWrite must follow. Both take the mutex.
func (s *sendHalf) beginWrite() error {
	s.cond.L.Lock()
	defer s.cond.L.Unlock()
	for {
		if err := s.writable(); err != nil {
			return err
		}
		if !s.writing {
			s.writing = true
			return nil
		}
		s.cond.Wait()
	}
}

func (s *sendHalf) endWrite() {
	s.cond.L.Lock()
	defer s.cond.L.Unlock()
	s.writing = false
	s.cond.Broadcast()
}

// awaitCredit waits until something may be sent.
func (s *sendHalf) awaitCredit() error {
	for {
		if err := s.writable(); err != nil {
			return err
		}
		if s.credit.available() > 0 {
			return nil
		}
		s.cond.Wait()
	}
}

// abandon ends the direction for cause.
func (s *sendHalf) abandon(cause error) {
	s.end = cause
	s.deadline.Stop()
}

// setDeadline bounds how long a Write waits for credit and for a turn.
func (s *sendHalf) setDeadline(t time.Time) error {
	if s.end == net.ErrClosed {
		return net.ErrClosed
	}
	s.deadline.Set(t, &s.cond)
	return nil
}
