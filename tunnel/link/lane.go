package link

import "time"

// FeatureLanes is named in the HELLO of every process that takes part in lanes
// (§10).
const FeatureLanes = "lanes"

// Lanes says whether both sides take part in lanes (§10).
func (ses *Session) Lanes() bool { return ses.lanes }

// Moved returns the payload bytes that went so far, and those of both directions.
func (ses *Session) Moved() (sent, all uint64) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.count.sent, ses.count.moved()
}

// alarm calls wake once the link has carried a number of bytes.
type alarm struct {
	at   uint64 // payload bytes, both ways; 0: not set
	wake func()
}

// WakeAfter has wake called, once and on a goroutine of its own, when n payload bytes
// more have come or gone, unless the session ends before that. Of several calls, the
// last one counts. Close waits until wake is over.
func (ses *Session) WakeAfter(n uint64, wake func()) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.alarm = alarm{ses.count.moved() + n, wake}
}

// ringLocked rings the alarm, if it is due.
func (ses *Session) ringLocked() {
	if ses.alarm.at == 0 || ses.count.moved() < ses.alarm.at || ses.err != nil {
		return
	}
	ses.wg.Go(ses.alarm.wake)
	ses.alarm = alarm{}
}

// sentLocked counts n payload bytes.
func (ses *Session) sentLocked(n int) {
	ses.count.sent += uint64(n)
	ses.ringLocked()
	ses.doubtLocked()
}

// receivedLocked counts n payload bytes.
func (ses *Session) receivedLocked(n int) {
	ses.count.received += uint64(n)
	ses.ringLocked()
}

// Bulk lists the streams that carried at least so many bytes since the last call,
// and counts those that carried fewer, but some. It costs one pass over the open
// streams. Only one goroutine at a time may call it.
func (ses *Session) Bulk(least uint64) (bulk []*Stream, small int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for _, st := range ses.streams.byID {
		carried := st.send.credit.sent + st.recv.credit.received
		switch {
		case carried-st.looked >= least:
			bulk = append(bulk, st)
		case carried > st.looked:
			small++
		}
		st.looked = carried
	}
	return bulk, small
}

// moveState is whether the opener of the connection that a stream carries may be asked
// to move it to another stream (§10).
type moveState uint8

const (
	moveFree    moveState = iota
	moveAsked             // it was asked, once
	moveRefused           // the other end cannot move
)

// AskMove asks the opener of the connection that the stream carries to move it
// to another stream, and returns whether it did: once for each stream, only if
// the stream was opened here, and only if the connection outlives it. It does
// not block.
func (st *Stream) AskMove() bool {
	ses, c := st.ses, &st.carrier
	ses.mu.Lock()
	tell := c.mover(true)
	able := ses.streams.own(st.id()) && c.outlived && c.move == moveFree && st.state.established() && tell != nil
	if able {
		c.move = moveAsked
	}
	ses.mu.Unlock()
	if able {
		tell()
	}
	return able
}

// sendMove sends the peer MOVE, which goes to the connection's opener. It does not
// block.
func (st *Stream) sendMove() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.state.established() {
		st.send.out.move = true
		st.queueLocked()
	}
}

// Stay tells a peer that knows of lanes that the connection cannot be resumed any
// more, so that it does not ask for that. It does not block.
func (st *Stream) Stay() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.ses.lanes && st.state.established() {
		st.send.out.stay = true
		st.queueLocked()
	}
}

// handleMoveUnlocked passes MOVE to the end that can move the connection. It releases
// the mutex meanwhile.
func (r *frameReader) handleMoveUnlocked(h header) error {
	ses := r.ses
	st, err := ses.streams.find(h.stream)
	if st == nil {
		return err
	}
	c := &st.carrier
	switch {
	case !st.state.established():
		st.breachLocked()
	case h.flags&flagMoveStay != 0:
		c.move = moveRefused
	case !c.moveWanted: // a flood of them makes no work
		c.moveWanted = true
		if tell := c.mover(ses.servers); tell != nil {
			ses.mu.Unlock()
			tell()
			ses.mu.Lock()
		}
	}
	return nil
}

// mover returns what asks the connection's opener to move it; nil: nothing as yet, or nothing
// that serves the asker. byServer says that a server asks, this one or the peer.
func (c *carrier) mover(byServer bool) func() {
	switch {
	case c.watcher != nil:
		return c.watcher.Move
	case c.joint != nil && byServer:
		return c.joint.sendMove
	default:
		return nil
	}
}

// Line is what the kernel tells of a link's connection.
type Line struct {
	// Lost counts segments that were sent again, or that arrived before one that
	// was sent earlier. Only whether it grows says anything.
	Lost uint64

	// Delivered counts segments that have reached the peer's kernel, also those behind a
	// lost one, and wraps around. Segment is the size of one, in bytes.
	Delivered, Segment uint32

	// Received counts segments that have come, acknowledgements, too, and wraps around.
	Received uint32

	RTT  time.Duration // the least of the last minutes; 0: unknown
	SRTT time.Duration // now, smoothed (RFC 6298 §2); 0: unknown
}

// Line asks the kernel; what it cannot tell is zero.
func (ses *Session) Line() Line { return ses.sender.socket.line() }

// Pace bounds what the link sends, in bytes per second, from its next turn of bulk on; 0
// lifts the bound before its next turn. It does nothing but on Linux. It does not block, and
// any goroutine may call it.
func (ses *Session) Pace(rate uint64) { ses.sender.pace.Store(rate) }
