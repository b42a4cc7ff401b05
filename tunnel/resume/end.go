package resume

import (
	"errors"
	"time"

	"konnectivity/tunnel"
)

// State is where an end of a connection is in its life.
type State uint8

// The states of an end.
const (
	Attached  State = iota // a carrier is there
	Detached               // it waits for the next carrier
	Lingering              // nobody uses it any more; the peer lacks some of it
	Gone                   // it is over
)

// Reason is why an end is gone.
type Reason uint8

// The reasons.
const (
	NotGone     Reason = iota
	Complete           // both directions ended, and the peer has it all
	Ended              // one of the ends has reset it
	Unconfirmed        // nobody used it any more, and the peer did not say that it has it all
	Expired            // no carrier came within the window
	Unknown            // the peer does not know it, or not any more
	Dishonest          // the peer contradicted itself
	Unresolved         // what it kept was given up, and its carrier was lost

	Reasons // how many there are
)

var reasons = [...]string{"", "complete", "ended", "unconfirmed", "window", "unknown", "contradiction", "memory"}

// Label is the reason as a value of a metric's label.
func (r Reason) Label() string { return reasons[r] }

// The ways a carrier can fail to attach.
var (
	ErrStale = errors.New("a newer carrier was there already")
	ErrGone  = errors.New("the connection is over")
)

// stillTime is how long an end that nobody uses any more waits for its peer to take
// more, while a carrier is there: as long as a relay lets the second direction of a
// connection be silent.
const stillTime = 10 * time.Minute

// End is one end of a connection.
type End struct {
	Out Outgoing
	In  Incoming

	window time.Duration
	since  time.Time // it waits, for no longer than patience; zero: it does not
	epoch  uint32    // of the newest carrier that was attached or tried
	reason Reason

	carried   bool
	confirmed bool // the peer uses the present carrier
	plain     bool // it will not outlive its carrier
	closed    bool // nobody reads any more
	abandoned bool // the peer is yet to be told that it is over
}

// newEnd returns an end that is attached to its first carrier and may be without
// one, or wait for its peer to take what is left, for as long as window.
func newEnd(window time.Duration) End {
	return End{window: window, carried: true, confirmed: true}
}

// Dialed numbers the first carrier, if others were tried in vain before it.
func (e *End) Dialed(attempt uint32) { e.epoch = attempt }

// State is the end's state.
func (e *End) State() State {
	switch {
	case e.reason != NotGone:
		return Gone
	case e.over() || e.abandoned:
		return Lingering
	case e.carried:
		return Attached
	default:
		return Detached
	}
}

// Reason is why the end is gone.
func (e *End) Reason() Reason { return e.reason }

// Epoch numbers the newest carrier; the first has 0.
func (e *End) Epoch() uint32 { return e.epoch }

// Carried says whether there is a carrier.
func (e *End) Carried() bool { return e.carried && e.reason == NotGone }

// Plain says that the end will not outlive its carrier.
func (e *End) Plain() bool { return e.plain }

// Deadline is when Tick has something to do; zero: never, as things are.
func (e *End) Deadline() time.Time {
	if e.since.IsZero() {
		return e.since
	}
	return e.since.Add(e.patience())
}

// patience is how long the end waits, as things are.
func (e *End) patience() time.Duration {
	if e.carried && e.In.Finished() {
		return max(e.window, stillTime)
	}
	return e.window
}

// over says that nobody uses this end any more.
func (e *End) over() bool { return e.Out.Finished() && (e.In.Finished() || e.closed) }

// LosesCarrier says whether a reset with this code tells of a lost carrier, and
// not of the connection's end.
func LosesCarrier(code tunnel.Code) bool {
	return code == tunnel.CodeLost || code == tunnel.CodeShutdown
}

// Heard notes that the peer uses the carrier.
func (e *End) Heard(epoch uint32) {
	if epoch == e.epoch {
		e.confirmed = true
	}
}

// Broken takes in how the carrier of that epoch ended. Whoever gives a carrier
// up before it has used it says nothing about the connection.
func (e *End) Broken(epoch uint32, code tunnel.Code, now time.Time) {
	switch {
	case epoch != e.epoch || !e.Carried():
	case !LosesCarrier(code) && e.confirmed:
		e.finish(Ended)
	case e.plain:
		e.finish(Unresolved)
	default:
		e.leave(now)
	}
}

// leave starts the window, with the loss of a carrier; to try in vain does not
// stretch it.
func (e *End) leave(now time.Time) {
	if e.carried {
		e.carried, e.since = false, time.Time{}
	}
	e.wait(now)
}

// wait has the end wait from now on, unless it does already.
func (e *End) wait(now time.Time) {
	if e.since.IsZero() {
		e.since = now
	}
}

// Try begins to resume: it returns the number of the next carrier and what the
// peer is to be told has been taken. The opener calls it once nothing more can
// come out of the carrier before. A carrier that was tried in vain leaves no
// trace but its number.
func (e *End) Try(now time.Time) (epoch uint32, taken uint64, err error) {
	if e.reason != NotGone || e.plain {
		return 0, 0, ErrGone
	}
	e.leave(now)
	e.confirmed = false
	e.epoch++
	return e.epoch, e.In.Tell(), nil
}

// Resumed takes in the answer to Try: a carrier at whose end the peer has taken
// all before offset.
func (e *End) Resumed(epoch uint32, offset uint64, now time.Time) error {
	if e.reason != NotGone {
		return ErrGone
	}
	if epoch != e.epoch || e.carried {
		return ErrStale
	}
	e.confirmed = true // its answer was heard
	return e.attach(offset, now)
}

// Accept takes a carrier that the peer resumes by, and returns what the peer is
// to be told has been taken. The newest wins, whichever comes first.
func (e *End) Accept(epoch uint32, offset uint64, now time.Time) (taken uint64, err error) {
	switch {
	case e.reason != NotGone:
		return 0, ErrGone
	case e.plain:
		if epoch > e.epoch { // the peer has left the carrier that this end has
			e.finish(Unresolved)
		}
		return 0, ErrGone
	case epoch <= e.epoch:
		return 0, ErrStale
	}
	e.epoch, e.confirmed = epoch, false
	if err := e.attach(offset, now); err != nil {
		return 0, err
	}
	return e.In.Tell(), nil
}

func (e *End) attach(offset uint64, now time.Time) error {
	if e.abandoned {
		e.finish(Ended)
		return ErrGone
	}
	if err := e.Out.Rewind(offset); err != nil {
		e.finish(Dishonest)
		return err
	}
	e.carried, e.since = true, time.Time{}
	e.In.Keeps(false)
	e.Settle(now)
	return nil
}

// Ack takes in what the peer acknowledges.
func (e *End) Ack(offset uint64, now time.Time) error {
	if e.reason != NotGone {
		return nil
	}
	kept := e.Out.Kept()
	if err := e.Out.Ack(offset); err != nil {
		e.finish(Dishonest)
		return err
	}
	if e.carried && e.Out.Kept() < kept {
		e.since = time.Time{}
	}
	e.Settle(now)
	return nil
}

// Due says whether the peer is to be told at once what was taken, and not when it
// falls silent. The end of its direction can wait for ours, which often follows:
// both then go together.
func (e *End) Due() bool {
	return e.In.much() || e.Out.Finished() && e.In.Finished() && e.In.Owes()
}

// Settle is called after either direction has ended: once both have, the end
// lingers until the peer has everything. While there is a carrier, and the peer does
// not wait for what nobody reads, it may take as long as it goes on, and stand still
// for stillTime: who is slow is not to lose the last of it.
func (e *End) Settle(now time.Time) {
	switch {
	case e.reason != NotGone || e.abandoned || !e.over():
	case e.Out.Done():
		e.finish(Complete)
	default:
		e.wait(now)
	}
}

// Close notes that nobody uses the end any more. What was written is still
// delivered; what comes is to be taken and dropped.
func (e *End) Close(now time.Time) {
	if e.reason != NotGone {
		return
	}
	e.closed = true
	e.Out.Finish()
	e.Settle(now)
}

// Abandon ends it on this side while there is no carrier to say so: it keeps
// nothing any more, and waits for one by which the peer can be told. An end
// that is not the one to resume need not wait.
func (e *End) Abandon(now time.Time) {
	if e.reason != NotGone {
		return
	}
	e.abandoned = true
	e.Out.Release()
	e.wait(now)
}

// Abandoned says whether Abandon was called.
func (e *End) Abandoned() bool { return e.abandoned }

// Closed says whether Close was called.
func (e *End) Closed() bool { return e.closed }

// End ends it on this side, with no regard for what is under way.
func (e *End) End(reason Reason) { e.finish(reason) }

// Degrade makes the end plain, which frees what it keeps. Nothing happens to
// one that has no carrier: it needs what it has.
func (e *End) Degrade() bool {
	if e.plain || !e.Carried() {
		return false
	}
	e.plain = true
	e.Out.Void()
	return true
}

// Tick ends what has waited for too long.
func (e *End) Tick(now time.Time) {
	if until := e.Deadline(); e.reason == NotGone && !until.IsZero() && !now.Before(until) {
		e.finish(Expired)
	}
}

func (e *End) finish(reason Reason) {
	if e.reason != NotGone {
		return
	}
	if (reason == Expired || reason == Unknown) && e.State() == Lingering {
		reason = Unconfirmed
	}
	e.reason, e.carried, e.since = reason, false, time.Time{}
	e.Out.Release()
}
