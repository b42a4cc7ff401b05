package resume

import (
	"time"

	"konnectivity/tunnel"
)

// Machine is the state of one end of a connection: what becomes of it as carriers
// come and go. It has no I/O, no lock and no clock: each event has a method, which returns
// actions. Settle completes these, and the Conn carries them out. Events of a carrier that is
// not the newest change nothing.
//
// It owns the memory of the bytes that it keeps, until the connection is over.
type Machine struct {
	Out Outgoing
	In  Incoming

	err    error // why the connection is over for its application; nil: it is not, or ended in order
	window time.Duration
	since  time.Time // beginning of the wait that Deadline bounds; zero: there is none
	epoch  uint32    // of the newest carrier that was attached or tried
	churn  churn     // how resuming has fared of late

	life     Life
	phase    Phase
	carrier  CarrierState
	reader   ReaderState
	sender   SenderState
	timers   timers
	loss     tunnel.LossCause // of the newest carrier that was lost
	readers  int16            // reads of a carrier under way
	bulk     bool             // the peer has acknowledged while a Step or more was kept
	saidMuch bool             // by the present carrier, the peer counts on twice a BigStep
}

// stillTime is how long a connection that lingers with a carrier waits for the peer
// to take more: as long as a relay lets the second direction be silent.
const stillTime = 10 * time.Minute

// hurriedTime is stillTime where memory is scarce: else a peer that acknowledges nothing would have
// new connections be plain for as long. A link that is lost is noticed by then.
const hurriedTime = 20 * time.Second

// newMachine returns an end that is attached to its first carrier, which has the number
// epoch, and which waits no longer than window for another.
func newMachine(window time.Duration, epoch uint32) Machine {
	return Machine{window: window, epoch: epoch}
}

// State returns the state of the connection.
func (m *Machine) State() State {
	switch {
	case m.Over():
		return StateGone
	case m.left() || m.phase == Abandoned:
		return StateLingering
	case m.carried():
		return StateAttached
	default:
		return StateDetached
	}
}

// Over reports whether the connection is over.
func (m *Machine) Over() bool { return m.life != Live }

// Up reports whether a stream carries the connection.
func (m *Machine) Up() bool {
	return !m.Over() && (m.carrier == Attached || m.carrier == Unproven)
}

// Closed reports whether the application has closed the connection.
func (m *Machine) Closed() bool { return m.reader == Dropping }

// Moving reports whether the connection is on its way to another process.
func (m *Machine) Moving() bool { return !m.Over() && m.phase == Moving }

// Movable reports whether MoveBegins can put it on its way.
func (m *Machine) Movable() bool { return !m.Over() && m.phase == InUse && !m.Plain() }

// OffsetsFinal reports whether nothing is under way any more on the carrier that was left.
func (m *Machine) OffsetsFinal() bool { return m.carrier == Detached }

// Life tells whether the connection is over, and why.
func (m *Machine) Life() Life { return m.life }

// Err returns why the connection is over for its application; nil: it is not, or has ended
// in order.
func (m *Machine) Err() error { return m.err }

// Epoch returns the number of the newest carrier that was attached or tried.
func (m *Machine) Epoch() uint32 { return m.epoch }

// Loss returns why the newest carrier that was lost was lost.
func (m *Machine) Loss() tunnel.LossCause { return m.loss }

// Reader returns what becomes of bytes that arrive.
func (m *Machine) Reader() ReaderState { return m.reader }

// BeingRead reports whether reads of a carrier are under way.
func (m *Machine) BeingRead() bool { return m.readers > 0 }

// Lacks reports whether there is a carrier that lacks bytes, or the end.
func (m *Machine) Lacks() bool { return m.Up() && m.Out.Unsent() }

// Sending reports whether the carrier is being given what it lacks, until Sent.
func (m *Machine) Sending() bool { return m.sender != SenderIdle }

// WriterSends reports whether that is the application's own write.
func (m *Machine) WriterSends() bool { return m.sender == SenderWriter }

// Plain reports whether the connection ends with its carrier, for lack of memory.
func (m *Machine) Plain() bool { return m.Out.void }

// Deadline returns when DeadlineDue ends the connection; zero: never, as things are.
func (m *Machine) Deadline() time.Time {
	if m.since.IsZero() {
		return m.since
	}
	patience := m.window
	if m.carried() && m.In.Finished() {
		patience = max(patience, stillTime)
	}
	return m.since.Add(patience)
}

// Overstays reports whether the connection has lingered for hurriedTime with a carrier, and
// without news that the peer has taken more.
func (m *Machine) Overstays(now time.Time) bool {
	return m.Up() && m.left() && !m.since.IsZero() && now.Sub(m.since) >= hurriedTime
}

// Pause returns how long an opener waits before it asks for the next carrier, at most: its
// Conn takes some of that off, so that connections do not come back all at once.
func (m *Machine) Pause() time.Duration {
	if m.churn.vain >= mostVain { // there is no next carrier
		return 0
	}
	return m.churn.pause(m.window)
}

// carried reports whether there is a carrier, or one that the peer may have already.
func (m *Machine) carried() bool { return m.Up() || m.carrier == Answering && !m.Over() }

// left reports whether the application has left both directions.
func (m *Machine) left() bool {
	return m.Out.Finished() && (m.In.Finished() || m.reader == Dropping)
}

// Acknowledgement returns the fields of the next ACK: the offset below which all was taken,
// whether that includes the end, and whether this end can keep twice a BigStep.
func (m *Machine) Acknowledgement(scarce bool) (offset uint64, end, big bool) {
	m.saidMuch = m.hasMuch(scarce)
	offset, end = m.Tell()
	return offset, end, m.saidMuch
}

// Tell returns the offset below which all was taken, and whether that includes the end. Both
// count as acknowledged: the caller tells the peer.
func (m *Machine) Tell() (offset uint64, end bool) { return m.In.Tell(), m.In.Finished() }

// Append takes over chunks of the application's, and clears them. Written follows.
func (m *Machine) Append(chunks []tunnel.Chunk) {
	for i := range chunks {
		m.Out.Append(chunks[i])
		chunks[i] = tunnel.Chunk{}
	}
}

// Next puts into dst what to give the carrier next, as Outgoing.Next does. Given follows, or
// CarrierLost.
func (m *Machine) Next(dst []tunnel.Chunk) (n int, fin bool) { return m.Out.Next(dst) }

// Given notes that the carrier has taken what Next returned.
func (m *Machine) Given() { m.Out.Given() }

// TakeOverSend notes that after the action Send, the application's own write gives the carrier
// what it lacks.
func (m *Machine) TakeOverSend() { m.sender = SenderWriter }

// Release frees the memory of a connection that never began.
func (m *Machine) Release() { m.Out.Release() }

// BeginRead notes that a carrier is read until ReadDone.
func (m *Machine) BeginRead() { m.readers++ }

// losesCarrier reports whether a reset with this code tells of a lost carrier, and not of
// the connection's end.
func losesCarrier(code tunnel.Code) bool {
	return code == tunnel.CodeLost || code == tunnel.CodeShutdown
}

// Written takes in that the application has written, or ends its direction.
func (m *Machine) Written(fin bool) Actions {
	if fin {
		m.Out.Finish()
	}
	return Used | Wake
}

// CarrierDetached takes in that the carrier which was left delivers nothing more.
func (m *Machine) CarrierDetached() Actions {
	if m.carrier == Detaching {
		m.carrier = Draining
	}
	return m.drained()
}

// RedialFailed takes in why there is no next carrier yet, or that there will be none.
func (m *Machine) RedialFailed(cause error) Actions {
	if m.carrier == Dialing {
		m.carrier = Detached
	}
	switch tunnel.FailureOf(cause) {
	case tunnel.FailGone:
		return m.finish(Unknown, nil)
	case tunnel.FailDenied:
		return m.finish(Denied, nil)
	}
	return 0
}

// AckDue acknowledges, if there is something to acknowledge still.
func (m *Machine) AckDue() Actions {
	m.timers &^= ackTimer
	if m.Up() && m.In.Owes() {
		return Ack
	}
	return 0
}

// DeadlineDue ends the connection if it has waited too long.
func (m *Machine) DeadlineDue(now time.Time) Actions {
	m.timers &^= deadlineTimer
	if until := m.Deadline(); !until.IsZero() && !now.Before(until) {
		return m.finish(Expired, nil)
	}
	return 0
}

// Degraded makes a connection plain that has a carrier. Without one, it needs what it keeps.
func (m *Machine) Degraded() Actions {
	if m.Up() {
		m.Out.Void()
	}
	return Wake
}

// Evicted ends the connection, unless it has a carrier by now.
func (m *Machine) Evicted() Actions {
	if m.Up() {
		return 0
	}
	return m.finish(Discarded, nil)
}

// Forbidden ends a connection whose destination a policy forbids by now.
func (m *Machine) Forbidden() Actions { return m.finish(Denied, nil) }

// Close drops what arrives from now on. The relay of a connection that is Moving has ended,
// and the next one goes on.
func (m *Machine) Close() Actions {
	if m.Over() || m.phase == Moving {
		return 0
	}
	m.reader = Dropping
	m.Out.Finish()
	return Wake
}

// conclude returns the actions that any event may lead to.
func (m *Machine) conclude(now time.Time) (a Actions) {
	if m.Up() && m.In.Due(m.Out.Finished()) {
		a |= Ack
	}
	if m.phase == InUse && m.left() {
		if m.Out.Done() {
			return a | m.finish(Complete, nil)
		}
		m.wait(now)
	}
	if m.Lacks() && !m.Sending() {
		m.sender = SenderTask
		a |= Send
	}
	if !m.since.IsZero() && m.timers&deadlineTimer == 0 {
		m.timers |= deadlineTimer
		a |= WatchDeadline
	}
	return a
}

// wait begins a wait, unless one has begun.
func (m *Machine) wait(now time.Time) {
	if m.since.IsZero() {
		m.since = now
	}
}

// Sent takes in that the sender has nothing more to give.
func (m *Machine) Sent() Actions {
	m.sender = SenderIdle
	return m.drained() | Wake
}

// ReadDone ends what BeginRead began.
func (m *Machine) ReadDone(epoch uint32, n int, fin bool) Actions {
	m.readers--
	return m.Took(epoch, n, fin) | m.drained()
}

// Took counts bytes that came out of a carrier. Bytes of a carrier that was left count, too:
// the next carrier comes only after Draining.
func (m *Machine) Took(epoch uint32, n int, fin bool) Actions {
	if n > 0 || fin {
		m.churn.brought()
	}
	m.In.Take(n)
	a := Used
	if fin {
		m.In.Finish()
		a |= Wake
	}
	if !m.Up() || epoch != m.epoch || n == 0 && !fin {
		return a
	}
	m.carrier = Attached
	if m.timers&ackTimer == 0 && !m.In.Due(m.Out.Finished()) {
		m.timers |= ackTimer
		a |= AckSoon
	}
	return a
}

// Acked takes in an acknowledgement, by a peer that says whether it keeps much.
func (m *Machine) Acked(epoch uint32, offset uint64, big, scarce bool) Actions {
	if !m.Up() || epoch != m.epoch {
		return 0
	}
	m.carrier = Attached
	kept := m.Out.Kept()
	if offset > m.Out.acked {
		m.churn.brought()
	}
	if m.Out.Ack(offset) != nil {
		return m.finish(Contradicted, nil)
	}
	n := kept - m.Out.Kept()
	if n > 0 || m.Plain() && m.Out.Advances(offset) {
		m.since = time.Time{} // a peer that is slow is not to lose the last of it
	}
	m.bulk = m.bulk || n > 0 && kept >= Step
	m.In.Keeps(big)
	if over := m.left() && m.Out.Done(); !over && m.saidMuch != m.hasMuch(scarce) {
		return Ack | Wake
	}
	return Wake
}

// Blocked is called when a writer waits for room. A peer that counts on more than there
// is now is told, so that it acknowledges sooner.
func (m *Machine) Blocked(scarce bool) Actions {
	if m.Up() && m.saidMuch && !m.hasMuch(scarce) {
		return Ack
	}
	return 0
}

// CarrierLost takes in that the carrier has failed. An opener that resets a carrier
// before it has used it has given up waiting, and says nothing about the connection, unless
// the reset is that of a policy.
func (m *Machine) CarrierLost(epoch uint32, cause error, now time.Time) Actions {
	code := tunnel.CodeOf(cause)
	switch {
	case epoch != m.epoch || !m.carried():
		return 0
	case m.carrier == Attached && !losesCarrier(code), code == tunnel.CodePolicy:
		return m.finish(Ended, cause)
	case m.Plain():
		return m.finish(Discarded, nil)
	}
	return m.leave(tunnel.LossOf(cause), now)
}

// leave starts the window, with the loss of a carrier.
func (m *Machine) leave(cause tunnel.LossCause, now time.Time) Actions {
	m.loss, m.since = cause, now
	m.churn.lost(now, m.left())
	if m.carrier == Answering {
		m.carrier = Detached
		return Wake
	}
	m.carrier = Detaching
	return Detach | Wake
}

// MoveBegins gives up the carrier, so that the offsets become final.
func (m *Machine) MoveBegins(now time.Time) Actions {
	if !m.Movable() {
		return 0
	}
	m.phase = Moving
	if !m.carried() {
		return Wake
	}
	return m.leave(tunnel.LossReplaced, now)
}

// MoveFails has the connection stay.
func (m *Machine) MoveFails() Actions {
	if m.Moving() {
		m.phase = InUse
	}
	return Wake
}

// MoveEnds takes in that another process has the connection.
func (m *Machine) MoveEnds() Actions { return m.finish(Moved, tunnel.ErrSeized) }

// drained tells that nothing is under way any more on the carrier that was left.
func (m *Machine) drained() Actions {
	switch {
	case m.Over():
		return Wake
	case m.carrier == Draining && !m.Sending() && !m.BeingRead():
		m.carrier = Detached
		return Dial | Wake
	case m.reader == Dropping:
		return Wake // drop waits for the last reader
	}
	return 0
}

// Redial numbers the next attempt. An attempt in vain leaves no trace but its number.
func (m *Machine) Redial(now time.Time) Actions {
	if m.Over() || m.Plain() || m.carrier != Detached && m.carrier != Dialing {
		return RefuseGone
	}
	if m.churn.vain >= mostVain {
		return m.fruitless() | RefuseGone
	}
	m.wait(now)
	m.epoch++
	m.carrier = Dialing
	return 0
}

// Offered takes in that the opener wants to go on by another carrier. The newest epoch wins,
// in whatever order they come. Without Answer or a refusal, the carrier before is still in
// use: the caller offers again after Wake.
func (m *Machine) Offered(epoch uint32, offset uint64, now time.Time) Actions {
	switch {
	case m.life == Moved:
		return RefuseMoving
	case m.life == Ended: // the reset may have been lost: the new carrier brings it again
		return Answer
	case m.Over():
		return RefuseGone
	case epoch <= m.epoch && m.Plain():
		return RefuseGone
	case epoch <= m.epoch:
		return RefuseStale
	case m.phase == Moving:
		return RefuseMoving
	case m.Up():
		return m.leave(tunnel.LossReplaced, now)
	case m.carrier == Detaching || m.carrier == Draining:
		return 0
	case m.Plain(): // the peer has left the carrier that this end had
		return m.finish(Discarded, nil) | RefuseGone
	}
	if m.carrier == Answering {
		m.churn.lost(now, m.left())
	}
	if m.churn.vain >= mostVainAccepted {
		return m.fruitless() | RefuseGone
	}
	m.epoch, m.carrier = epoch, Answering
	return m.rewind(offset, now) | Answer
}

// CarrierUp attaches the carrier of a redial or an offer.
func (m *Machine) CarrierUp(epoch uint32, offset uint64, now time.Time) (a Actions) {
	switch {
	case m.Over():
		return RefuseGone
	case epoch != m.epoch || m.carrier != Dialing && m.carrier != Answering:
		return RefuseStale
	case m.carrier == Answering:
		m.carrier = Unproven
	case m.phase == Abandoned:
		return m.finish(Ended, nil) | RefuseGone
	default:
		m.carrier = Attached // its answer was heard
		a = m.rewind(offset, now)
	}
	if m.In.Finished() { // every carrier waits for that acknowledgement before it is closed
		a |= Ack
	}
	return a | Attach | Wake
}

// rewind goes on from an offset, below which the peer has taken all.
func (m *Machine) rewind(offset uint64, now time.Time) Actions {
	if offset > m.Out.acked {
		m.churn.brought()
	}
	if m.Out.Rewind(offset) != nil {
		return m.finish(Contradicted, nil) | RefuseGone
	}
	m.churn.resumed(now)
	m.since = time.Time{}
	m.In.Keeps(false)
	m.saidMuch = false
	return 0
}

// Reset ends the connection on this side. An opener without a carrier frees its memory, and
// waits for a carrier to reset.
func (m *Machine) Reset(cause error, redials bool, now time.Time) Actions {
	if m.Moving() && cause == tunnel.ErrSeized { // its relay ends, and not the connection
		m.err = cause
		return Fail | Wake
	}
	err := &tunnel.ResetError{Code: tunnel.CodeOf(cause), Loss: tunnel.LossOf(cause)}
	if m.Up() || m.Over() || !redials {
		return m.finish(Ended, err)
	}
	m.Out.Release()
	m.wait(now)
	if m.phase == Abandoned {
		return 0
	}
	m.phase, m.err = Abandoned, err
	return Fail | Wake
}

// finish ends the connection, unless it is over, and returns what that leads to. err is for
// the application; nil: the error of that life.
func (m *Machine) finish(life Life, err error) Actions {
	if m.Over() {
		return 0
	}
	if (life == Expired || life == Unknown || life == Fruitless) && m.State() == StateLingering {
		life = Unconfirmed
	}
	switch {
	case m.err != nil:
	case err != nil:
		m.err = err
	case life == Contradicted:
		m.err = &tunnel.ResetError{Code: tunnel.CodeProtocol}
	case life == Denied:
		m.err = &tunnel.ResetError{Code: tunnel.CodePolicy}
	case life != Complete:
		m.err = &tunnel.ResetError{Code: tunnel.CodeLost}
	}
	m.life, m.since = life, time.Time{}
	m.Out.Release()
	if m.phase == InUse || m.phase == Moving && life != Moved {
		return Fail | Finish | Wake
	}
	return Finish | Wake
}

// fruitless ends a connection that was resumed in vain. Its application reads why the last
// carrier was lost; but where this process has closed that one's link, or left the stream,
// that is no cause: it has not closed the connection.
func (m *Machine) fruitless() Actions {
	cause := m.loss
	if cause == tunnel.LossLocal {
		cause = tunnel.LossUnknown
	}
	return m.finish(Fruitless, tunnel.Lost(cause))
}

// ResetCode returns the code to reset a carrier with when the connection is over.
func (m *Machine) ResetCode() tunnel.Code {
	code := tunnel.CodeGone
	switch {
	case m.life == Contradicted:
		return tunnel.CodeProtocol
	case m.life == Denied:
		return tunnel.CodePolicy
	case m.life == Ended:
		code = tunnel.CodeOf(m.err)
	}
	if losesCarrier(code) { // the peer would wait for another carrier
		return tunnel.CodeGone
	}
	return code
}
