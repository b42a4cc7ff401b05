package link

import (
	"io"

	"konnectivity/tunnel"
)

// A stream that delivers has no goroutine that waits for its bytes. The read loop hands
// them to the other side of the relay, which may take them on the spot. Otherwise the
// receiver gets the turn to read: a goroutine that fetches what waits, and ends when
// nothing does. So bytes between two links change no goroutine; the other link sends
// them once there is nothing more to read.

// delivery is how a stream delivers.
type delivery struct {
	to   tunnel.Receiver
	turn bool // the receiver has the turn to read, or was told the end
}

// Rest implements tunnel.Source: there is a read loop.
func (st *Stream) Rest(tunnel.Receiver) bool { return false }

// Deliver implements tunnel.Source.
func (st *Stream) Deliver(r tunnel.Receiver) bool {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.recv.delivery = &delivery{to: r, turn: true}
	return true
}

// endTurn ends the receiver's turn to read if nothing is left, and reports whether it
// did.
func (r *recvHalf) endTurn() bool {
	if r.delivery == nil || r.readable() {
		return false
	}
	r.delivery.turn = false
	return true
}

// wake tells readers, and the receiver unless it has the turn already, that there is
// something to fetch.
func (r *recvHalf) wake() {
	r.cond.Broadcast() // what one reader leaves is the next one's
	if d := r.delivery; d != nil && !d.turn {
		d.turn = true
		d.to.Ready()
	}
}

// tellFailure tells a receiver that has the turn of the stream's failure, since it may
// be stuck with earlier bytes. A stream that ended in order needs no such haste.
func (r *recvHalf) tellFailure() {
	if d := r.delivery; d != nil && d.turn && r.end != io.EOF {
		d.to.Fail(r.end)
	}
}

// caughtUp reports whether the stream delivers, and nothing waits to be fetched.
func (r *recvHalf) caughtUp() bool {
	return r.delivery != nil && !r.delivery.turn && r.queue.Empty()
}

// deliverEndUnlocked tells the receiver the end of a stream that has nothing else left.
// It releases the mutex meanwhile.
func (r *frameReader) deliverEndUnlocked(st *Stream) {
	st.recv.delivery.turn = true
	r.ses.mu.Unlock()
	st.recv.delivery.to.End()
	r.ses.mu.Lock()
}

// deliverUnlocked hands part to the stream's receiver and returns how many bytes it
// took. It releases the mutex meanwhile: two links that deliver to each other must not
// hold both.
func (r *frameReader) deliverUnlocked(st *Stream, part tunnel.Chunk) int {
	if part.Len() == 0 || !st.recv.caughtUp() {
		return 0
	}
	to := st.recv.delivery.to
	st.recv.taking = true
	r.ses.mu.Unlock()
	n := to.Take(part)
	if n > 0 {
		r.unflushed.add(to)
	}
	r.ses.mu.Lock()
	st.recv.taking = false
	if st.recv.dropped {
		st.recv.cond.Broadcast() // for Detach
	}
	if n > 0 && !st.recv.dropped { // else dropLocked has counted it
		st.consumedLocked(n)
	}
	return n
}

// unflushed are the receivers that have taken bytes since they were last flushed. The
// read loop owns it.
type unflushed []tunnel.Receiver

// maxUnflushed bounds how many there are.
const maxUnflushed = 64

// add notes a receiver.
func (g *unflushed) add(r tunnel.Receiver) {
	n := len(*g)
	if n > 0 && (*g)[n-1] == r {
		return
	}
	if n >= maxUnflushed {
		g.flush()
	}
	*g = append(*g, r)
}

// flush flushes all.
func (g *unflushed) flush() {
	for _, r := range *g {
		r.Flush()
	}
	clear(*g)
	*g = (*g)[:0]
}
