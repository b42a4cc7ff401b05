package link

import (
	"io"

	"konnectivity/tunnel"
)

// A stream that delivers has no goroutine that waits for its bytes. The read
// loop gives them to the other side of the relay itself, if that takes them on
// the spot; else its receiver gets the turn, which is a goroutine that fetches
// what waits and ends when there is nothing more. Between two links nothing then
// changes goroutine, and what was given to a link is sent when there is nothing
// more to read.

// delivery is how a stream delivers.
type delivery struct {
	to   tunnel.Receiver
	turn bool // somebody has the turn to read, or the end was told
}

// Deliver implements tunnel.Source.
func (st *Stream) Deliver(r tunnel.Receiver) bool {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.recv.delivery = &delivery{to: r, turn: true}
	return true
}

// endTurn returns whether the stream delivers and has nothing to read, which
// ends the turn of whoever asks.
func (r *recvHalf) endTurn() bool {
	if r.delivery == nil || r.readable() {
		return false
	}
	r.delivery.turn = false
	return true
}

// wake tells whoever is to fetch what waits: a reader, or the receiver, unless
// that has the turn already.
func (r *recvHalf) wake() {
	r.cond.Broadcast() // what one reader leaves is the next one's
	if d := r.delivery; d != nil && !d.turn {
		d.turn = true
		d.to.Ready()
	}
}

// tellFailure tells a receiver of the stream's failure, since it may be stuck
// with what came before. A stream that ended in order has all the time to be
// delivered.
func (r *recvHalf) tellFailure() {
	if d := r.delivery; d != nil && d.turn && r.end != io.EOF {
		d.to.Fail(r.end)
	}
}

// caughtUp says whether the stream delivers, and nothing waits to be fetched.
func (r *recvHalf) caughtUp() bool {
	return r.delivery != nil && !r.delivery.turn && r.queue.Empty()
}

// deliverEndUnlocked ends a stream that has nothing left but its end. The mutex
// is released meanwhile.
func (r *frameReader) deliverEndUnlocked(st *Stream) {
	st.recv.delivery.turn = true
	r.ses.mu.Unlock()
	st.recv.delivery.to.End()
	r.ses.mu.Lock()
}

// deliverUnlocked gives part to the stream's receiver and returns how much was
// taken. The mutex is released meanwhile: two links that deliver to each other
// must not hold both.
func (r *frameReader) deliverUnlocked(st *Stream, part tunnel.Chunk) int {
	if part.Len() == 0 || !st.recv.caughtUp() {
		return 0
	}
	to := st.recv.delivery.to
	st.recv.taking = true
	r.ses.mu.Unlock()
	n := to.Take(part)
	if n > 0 {
		r.given.add(to)
	}
	r.ses.mu.Lock()
	st.recv.taking = false
	if st.recv.dropped {
		st.recv.cond.Broadcast() // for Detach
	}
	if n > 0 && !st.recv.dropped { // else all was given up already
		st.consumedLocked(n)
	}
	return n
}

// given are those who were given something since they were last flushed. It is the
// read loop's own.
type given []tunnel.Receiver

// maxGiven bounds how many there may be before all are flushed.
const maxGiven = 64

// add notes one.
func (g *given) add(r tunnel.Receiver) {
	n := len(*g)
	if n > 0 && (*g)[n-1] == r {
		return
	}
	if n >= maxGiven {
		g.flush()
	}
	*g = append(*g, r)
}

// flush sends what they were given.
func (g *given) flush() {
	for _, r := range *g {
		r.Flush()
	}
	clear(*g)
	*g = (*g)[:0]
}
