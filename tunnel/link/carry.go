package link

import (
	"encoding/binary"
	"errors"
	"time"

	"konnectivity/tunnel"
)

// A stream can be one of several that carry a connection one after the other
// (§9). Between two links it hands on what the ends of that connection
// acknowledge, which it does not understand; at an end it has a Watcher.

// FeatureResume is named in the HELLO of every process that takes part in
// resuming.
const FeatureResume = "resume"

// ackTime bounds how long a stream that has ended, and that nobody uses any more, is
// kept for the last of its acknowledgements behind the one before: as long as an end
// waits for one. The last bytes may still be under way, on a link that is lost.
const ackTime = 10 * time.Minute

// endedMemory is what such a stream takes of its client's budget in a process between
// the ends, where whoever relayed has given back by then what the connection took. A
// connection's two streams take as much as it did while it was open, so a peer that
// acknowledges nothing has no more connections than one that ends none, and does not
// fill the link of an agent that others use as well.
const endedMemory = 5 << 10

// carrying is what a stream knows of the connection that it carries.
type carrying struct {
	grant   tunnel.Grant
	lasts   bool               // the connection outlives the stream
	again   bool               // the peer has opened it to resume one
	next    *Stream            // the other one that carries it, in a process between the ends,
	grown   bool               // whose window is no longer bound by our credit,
	follows *tunnel.ResetError // and how that one has ended, which this one is to do after it
	watcher Watcher            // at an end
	early   *Ack               // came before there was a watcher
	endIn   bool               // an acknowledgement of the end came,
	endOut  bool               // and one went
	held    bool               // endedMemory is, of the stream's budget
	acks    bool               // some passed since somebody looked
	taking  bool               // bytes are being delivered, without the lock
	asked   bool               // its opener was asked to have it go on elsewhere,
	stays   bool               // and it cannot
	moves   bool               // we were asked that
}

// Watcher is an end of a connection that outlives its streams.
type Watcher interface {
	// Acked tells what the other end has taken. It runs on the read loop, with
	// none of its locks held, and must not block.
	Acked(a Ack)

	// Lost tells that the stream has failed. It must neither block nor call
	// the stream.
	Lost(cause error)

	// Move tells that the connection had better go on by another stream (§10). It
	// must neither block nor call the stream.
	Move()
}

// Resumes says whether both sides take part in resuming (§9).
func (ses *Session) Resumes() bool { return ses.resumes }

// carryWith notes what was granted to the opener, before it is told, and which
// stream carries the connection on.
func (st *Stream) carryWith(far tunnel.Conn, grant tunnel.Grant) {
	next, between := far.(*Stream)
	st.ses.mu.Lock()
	st.carry.grant, st.carry.lasts, st.carry.next = grant, grant.Window > 0, next
	limit := st.send.credit.limit
	st.ses.mu.Unlock()
	if between {
		next.followCredit(limit)
	}
}

// carriedOn makes st pass on what far is told, now that the opener was told of
// the connection; some of it may have come before that.
func (st *Stream) carriedOn(far tunnel.Conn) {
	next, between := far.(*Stream)
	if !between {
		return
	}
	next.ses.mu.Lock()
	for next.carry.early != nil { // before next knows whom to tell, so that nothing newer overtakes it
		early := *next.carry.early
		next.carry.early = nil
		next.ses.mu.Unlock()
		st.Acknowledge(early)
		next.ses.mu.Lock()
	}
	next.carry.next = st
	failed, cause, limit := next.state == closed, next.send.end, next.send.credit.limit
	next.ses.mu.Unlock()
	st.followCredit(limit)
	if failed { // before it knew whom to tell
		st.follow(tunnel.CodeOf(cause))
	}
}

// followCredit takes in what the other stream that carries the connection may send,
// and says whether this one's credit depends on that (see recvCredit.follow).
func (st *Stream) followCredit(limit uint64) bool {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.recv.end != nil {
		return false
	}
	limit, grant, follows := st.recv.credit.follow(limit)
	if grant {
		st.send.out.credit = limit
		st.queueLocked()
	}
	return follows
}

// passCreditUnlocked tells the other stream of the connection what this one may send.
// The mutex is released meanwhile.
func (r *frameReader) passCreditUnlocked(st *Stream) {
	next, limit := st.carry.next, st.send.credit.limit
	if next == nil || st.carry.grown {
		return
	}
	r.ses.mu.Unlock()
	follows := next.followCredit(limit)
	r.ses.mu.Lock()
	st.carry.grown = !follows
}

// tellNextLocked ends the other stream of a connection as this one fails, on a
// goroutine that Close joins. Whoever relays between the two learns of the failure only
// while it reads from this one, and no longer once its peer has ended its direction,
// be the other direction idle, or over too, with its last bytes on a link that is lost.
func (st *Stream) tellNextLocked(cause error) {
	over := st.state == halfClosedRemote || st.state == ended
	if next := st.carry.next; over && next != nil && st.carry.lasts {
		st.ses.wg.Go(func() { next.follow(tunnel.CodeOf(cause)) })
	}
}

// follow has st reset with code, behind all that the other stream has brought it.
func (st *Stream) follow(code tunnel.Code) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.carry.follows = &tunnel.ResetError{Code: code}
	st.followLocked()
}

// followLocked does so as soon as what the other stream has brought is all here. What
// comes before its end is brought, or ended, by whoever relays.
func (st *Stream) followLocked() {
	if cause := st.carry.follows; cause != nil && (st.state == halfClosedLocal || st.state == ended) {
		st.sendResetLocked(cause.Code)
		st.dropLocked(cause, cause)
	}
}

// Session is the link that the stream is on.
func (st *Stream) Session() *Session { return st.ses }

// Watch tells w of acknowledgements from now on, and whenever it happens or happened,
// of the stream's failure, and that the connection had better move. It returns what
// was acknowledged before, if anything was.
func (st *Stream) Watch(w Watcher) (acked Ack, some bool) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.carry.watcher = w
	var reset *tunnel.ResetError
	if st.state == closed && errors.As(st.send.end, &reset) {
		w.Lost(st.send.end)
	}
	if st.carry.moves {
		w.Move()
	}
	early := st.carry.early
	st.carry.early = nil
	if early == nil {
		return Ack{}, false
	}
	return *early, true
}

// fail tells an end that the stream has failed, unless that end closed it.
func (c *carrying) fail(cause error, r *recvHalf) {
	if c.watcher != nil && !r.closed() {
		c.watcher.Lost(cause)
	}
}

// Acknowledge tells the other end of the connection what was taken. Of several
// acknowledgements that wait for the link, the last one is sent. It does not
// block.
func (st *Stream) Acknowledge(a Ack) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if !st.carry.lasts || st.state == closed {
		return
	}
	st.send.out.ack, st.send.out.acks = a, true
	st.carry.endOut, st.carry.acks = st.carry.endOut || a.End, true
	st.queueLocked()
	if st.state == ended && st.carry.settled() {
		st.onLocked(acknowledged)
	}
}

// handleAckUnlocked hands an acknowledgement to the end that it is for, or on
// to it. The mutex is released meanwhile.
func (r *frameReader) handleAckUnlocked(st *Stream, a Ack) {
	if !st.state.established() {
		st.breachLocked()
		return
	}
	st.carry.endIn, st.carry.acks = st.carry.endIn || a.End, true
	watcher, next := st.carry.watcher, st.carry.next
	if watcher == nil && next == nil {
		early := a // a itself is not to be allocated
		st.carry.early = &early
		return
	}
	r.ses.mu.Unlock()
	if watcher != nil {
		watcher.Acked(a)
	} else {
		next.Acknowledge(a)
	}
	r.ses.mu.Lock()
	if st.state == ended && st.carry.settled() {
		st.onLocked(acknowledged)
	}
}

// settled says whether the last acknowledgements have passed, both ways. A stream
// that has ended is forgotten then.
func (c *carrying) settled() bool { return c.endIn && c.endOut }

// await says whether acknowledgements are still to pass of a stream both of whose
// directions are over. It is then kept for them, for a time, at the expense of b
// until leave.
func (c *carrying) await(b *Budget) bool {
	if !c.lasts || c.settled() {
		return false
	}
	if c.next != nil {
		c.held = true
		b.Hold(endedMemory)
	}
	return true
}

// leave is called as a stream is closed.
func (c *carrying) leave(b *Budget) {
	if c.held {
		c.held = false
		b.Give(endedMemory)
	}
}

// Detach ends the stream, but not the connection that it carries. Nothing more
// comes out of it once that has returned. Where a write of it is under way, the
// link has doubtTime to get on with that or to say something.
func (st *Stream) Detach() {
	_ = st.Reset(tunnel.Lost(tunnel.LossReplaced))
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	if st.send.writing {
		st.ses.doubtWriteLocked()
	}
	for st.carry.taking {
		st.recv.cond.Wait()
	}
}

func appendResume(b []byte, r *tunnel.Resume) []byte {
	if r == nil {
		return b
	}
	b = appendField(b, openToken, r.Token[:])
	b = appendField(b, openWindow, binary.BigEndian.AppendUint32(nil, uint32(r.Window.Milliseconds())))
	if r.Attempt > 0 && !r.Again() {
		b = appendField(b, openAttempt, binary.BigEndian.AppendUint32(nil, r.Attempt))
	}
	if !r.Again() {
		return b
	}
	b = appendField(b, openEpoch, binary.BigEndian.AppendUint32(nil, r.Epoch))
	b = appendField(b, openRoute, []byte(r.Route))
	if r.Bulk {
		b = appendField(b, openBulk, []byte{1})
	}
	return appendField(b, openTaken, binary.BigEndian.AppendUint64(nil, r.Taken))
}

func readResume(r *tunnel.Resume, f field) error {
	var v uint64
	var err error
	switch f.key {
	case openToken:
		if len(f.value) != len(r.Token) {
			return errFields
		}
		r.Token = [16]byte(f.value)
	case openWindow:
		v, err = f.uint(4)
		r.Window = time.Duration(v) * time.Millisecond
	case openEpoch:
		v, err = f.uint(4)
		r.Epoch = uint32(v)
	case openRoute:
		if len(f.value) > maxText {
			return errFields
		}
		r.Route = string(f.value)
	case openTaken:
		r.Taken, err = f.uint(8)
	case openAttempt:
		v, err = f.uint(4)
		r.Attempt = uint32(v)
	case openBulk:
		v, err = f.uint(1)
		r.Bulk = v == 1
	}
	return err
}

func appendGrant(b []byte, g tunnel.Grant) []byte {
	if g.Window <= 0 {
		return b
	}
	b = appendField(b, openedWindow, binary.BigEndian.AppendUint32(nil, uint32(g.Window.Milliseconds())))
	b = appendText(b, openedRoute, cut(g.Route))
	return appendField(b, openedTaken, binary.BigEndian.AppendUint64(nil, g.Taken))
}

func readGrant(g *tunnel.Grant, f field) error {
	var v uint64
	var err error
	switch f.key {
	case openedWindow:
		v, err = f.uint(4)
		g.Window = time.Duration(v) * time.Millisecond
	case openedRoute:
		g.Route = clip(f.value)
	case openedTaken:
		g.Taken, err = f.uint(8)
	}
	return err
}
