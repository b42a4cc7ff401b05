package link

import (
	"errors"
	"time"

	"konnectivity/tunnel"
)

// A stream can be a carrier: one of several streams that carry a connection one after
// the other (§9). The stream does not understand the connection's numbers. At an end it has a
// Watcher, and in a process between the ends it is joined to another stream of the connection,
// toward the other end.

// FeatureResume is named in the HELLO of every process that takes part in
// resuming.
const FeatureResume = "resume"

// ackTime bounds how long an ended stream that is not in use is kept for its last
// acknowledgements. It is as long as an end waits for one: the last bytes may
// still be under way, on a link that is lost.
const ackTime = 10 * time.Minute

// endedMemory is what a stream that has ended, and is joined to another, takes of its
// client's budget until it is closed. A connection's two streams together then take as
// much as an open connection does, so a client gets no more connections by leaving
// ends unacknowledged, and cannot fill an agent's link that others use.
const endedMemory = 5 << 10

// hurriedAckTime is ackTime where memory is scarce for the client of such a stream: else one
// agent that acknowledges nothing would take the memory for all that its clients dial. A link
// that is lost is noticed by then, and its connections are resumed.
const hurriedAckTime = 20 * time.Second

// Ack acknowledges bytes of a connection to its other end (§9).
type Ack struct {
	Offset uint64 // all before it was taken
	End    bool   // the end of the direction was taken, too
	Big    bool   // its sender can keep much of the other direction, which needs fewer Acks then
}

// Watcher is an end of the connection that a stream carries. It is told what becomes of
// the stream.
type Watcher interface {
	// Acked passes on an acknowledgement of the connection's other end. It runs
	// on the read loop, without locks, and must not block.
	Acked(a Ack)

	// Lost tells that the stream has failed, unless this side has closed it. It
	// must neither block nor call the stream.
	Lost(cause error)

	// Move asks the connection's opener to go on by another stream (§10). It must
	// neither block nor call the stream.
	Move()
}

// carrier is the state of a stream as one that carries a connection. Session.mu guards
// it.
type carrier struct {
	outlived bool    // the connection outlives the stream
	watcher  Watcher // this or joint is set, by Watch or Join
	joint    *Stream // the connection's other stream, toward its other end
	early    *Ack    // the newest acknowledgement, which came before either

	ends   ackedEnds
	used   bool // an acknowledgement has passed since streams.overdue last asked
	held   bool // endedMemory is taken of the stream's budget
	free   bool // the joint follows this stream's credit no more
	behind *tunnel.ResetError

	move       moveState
	moveWanted bool // the peer has sent MOVE
}

// ackedEnds are the directions whose end was acknowledged on the stream.
type ackedEnds uint8

const (
	endIn  ackedEnds = 1 << iota // by the peer
	endOut                       // to the peer

	endBoth = endIn | endOut
)

// note takes in an acknowledgement for the direction.
func (c *carrier) note(a Ack, direction ackedEnds) {
	c.used = true
	if a.End {
		c.ends |= direction
	}
}

// settled reports whether both ends were acknowledged. A stream that has ended is
// closed then.
func (c *carrier) settled() bool { return c.ends == endBoth }

// Resumes reports whether both sides take part in resuming (§9).
func (ses *Session) Resumes() bool { return ses.resumes }

// Session is the link that the stream is on.
func (st *Stream) Session() *Session { return st.ses }

// Watch sets the stream's Watcher. It returns the newest acknowledgement that came before;
// nil: none did. Where the stream has failed by then, or was asked to move, the Watcher is
// told before Watch returns.
func (st *Stream) Watch(w Watcher) (acked *Ack) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.carrier.watcher = w
	var reset *tunnel.ResetError
	if st.state == closed && errors.As(st.send.end, &reset) {
		w.Lost(st.send.end)
	}
	if st.carrier.moveWanted {
		w.Move()
	}
	return st.carrier.takeEarly()
}

// Join joins two streams for the rest of their lives. A relay carries the bytes between them.
// Everything else that one end of the connection has to know of the other passes here; what
// came before Join passes first:
//
//	acknowledgements  ACK on one stream is sent on the other, unchanged
//	credit            one stream is granted little more than the other may send, until
//	                  its window has grown
//	fate              a stream that fails after its peer has ended its direction, when
//	                  no relay reads from it any more, has the other one reset
//	moves             MOVE goes toward the connection's opener
func Join(a, b *Stream) {
	a.joinTo(b)
	b.joinTo(a)
}

func (st *Stream) joinTo(other *Stream) {
	c, mu := &st.carrier, &st.ses.mu
	mu.Lock()
	for c.early != nil { // before other is set, so that no later one overtakes it
		early := c.takeEarly()
		mu.Unlock()
		other.Acknowledge(*early)
		mu.Lock()
	}
	c.joint = other
	limit, moves := st.send.credit.limit, c.moveWanted && st.ses.servers
	over, end := st.state == closed, st.send.end
	mu.Unlock()
	other.boundCredit(limit)
	if moves {
		other.sendMove()
	}
	if over {
		other.resetBehind(end)
	}
}

func (c *carrier) takeEarly() (early *Ack) {
	early, c.early = c.early, nil
	return early
}

// tellLostLocked tells that the stream has failed. peerEnded says that the
// peer had ended its direction before.
func (st *Stream) tellLostLocked(cause error, peerEnded bool) {
	switch c := &st.carrier; {
	case c.joint != nil:
		if joint := c.joint; peerEnded && c.outlived {
			st.ses.wg.Go(func() { joint.resetBehind(cause) })
		}
	case c.watcher != nil && !st.recv.closed():
		c.watcher.Lost(cause)
	}
}

// Acknowledge sends an acknowledgement to the connection's other end. Of several that
// wait for the link, the last one is sent. It does not block.
func (st *Stream) Acknowledge(a Ack) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if !st.carrier.outlived || st.state == closed {
		return
	}
	st.send.out.ack, st.send.out.acks = a, true
	st.carrier.note(a, endOut)
	st.queueLocked()
	st.closeSettledLocked()
}

// Forget has a stream that its holder has closed wait for no acknowledgements: the connection
// goes on by no other.
func (st *Stream) Forget() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.carrier.outlived = false
	if st.state == ended {
		st.onLocked(acknowledged)
	}
}

// handleAckUnlocked passes on an acknowledgement. It releases the mutex meanwhile.
func (r *frameReader) handleAckUnlocked(st *Stream, a Ack) {
	if !st.state.established() {
		st.breachLocked()
		return
	}
	c := &st.carrier
	c.note(a, endIn)
	joint, watcher := c.joint, c.watcher
	if joint == nil && watcher == nil {
		early := a // a itself is not to be allocated
		c.early = &early
		return
	}
	r.ses.mu.Unlock()
	if joint != nil {
		joint.Acknowledge(a)
	} else {
		watcher.Acked(a)
	}
	r.ses.mu.Lock()
	st.closeSettledLocked()
}

// closeSettledLocked closes a stream that has only waited for acknowledgements.
func (st *Stream) closeSettledLocked() {
	if st.state == ended && st.carrier.settled() {
		st.onLocked(acknowledged)
	}
}

// awaitsAcksLocked reports whether a stream is to be kept for acknowledgements after both
// directions have ended, and takes the memory for that.
func (st *Stream) awaitsAcksLocked() bool {
	c := &st.carrier
	if !c.outlived || c.settled() {
		return false
	}
	if c.joint != nil {
		c.held = true
		st.budget.Hold(endedMemory)
	}
	return true
}

// endWaitsLocked closes the streams that have waited long enough for acknowledgements. Where
// that was cut short for lack of memory, both ends are told, since they would wait on. The
// stream that each is joined to gives its memory back in a moment, so a few more may go than
// need to.
func (ses *Session) endWaitsLocked(now time.Time) {
	for _, st := range ses.streams.overdue(now, ackTime, func(*Stream) bool { return true }) {
		st.onLocked(acknowledged)
	}
	hurries := func(st *Stream) bool { return st.carrier.held && st.budget.Scarce() }
	for _, st := range ses.streams.overdue(now, hurriedAckTime, hurries) {
		if hurries(st) { // still: each has made room
			st.faultLocked(tunnel.CodeMemory)
		}
	}
}

// releaseMemory gives back what awaitsAcksLocked took.
func (c *carrier) releaseMemory(b *Budget) {
	if c.held {
		c.held = false
		b.Give(endedMemory)
	}
}

// boundCredit bounds what the peer may send to little more than limit, the offset up
// to which the connection's other stream may send, until this stream's window has
// grown. It returns whether the bound still holds (see recvCredit.follow).
func (st *Stream) boundCredit(limit uint64) bool {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.recv.end != nil {
		return false
	}
	limit, grant, bound := st.recv.credit.follow(limit)
	if grant {
		st.send.out.credit = limit
		st.queueLocked()
	}
	return bound
}

// creditedUnlocked tells the joint how much more the stream may send. It releases the
// mutex meanwhile.
func (r *frameReader) creditedUnlocked(st *Stream) {
	joint, limit := st.carrier.joint, st.send.credit.limit
	if joint == nil || st.carrier.free {
		return
	}
	r.ses.mu.Unlock()
	again := joint.boundCredit(limit)
	r.ses.mu.Lock()
	st.carrier.free = !again
}

// resetBehind resets the stream with the code of cause as soon as this side has ended its
// direction, so all bytes that a relay still writes come first.
func (st *Stream) resetBehind(cause error) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.carrier.behind = &tunnel.ResetError{Code: tunnel.CodeOf(cause), Loss: tunnel.LossOf(cause)}
	st.resetBehindLocked()
}

func (st *Stream) resetBehindLocked() {
	if cause := st.carrier.behind; cause != nil && (st.state == halfClosedLocal || st.state == ended) {
		st.sendResetLocked(cause.Code)
		st.ses.reset = time.Now()
		st.dropLocked(cause, cause)
	}
}

// Detach ends the stream, but not the connection that it carries. Nothing more comes
// out of the stream once Detach has returned. Where a write is under way, the link has
// probeTime to get on with it, or to receive something.
func (st *Stream) Detach() {
	_ = st.Reset(tunnel.Lost(tunnel.LossReplaced))
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.send.writing {
		st.ses.probeWriteLocked()
	}
	for st.recv.taking {
		st.recv.cond.Wait()
	}
}
