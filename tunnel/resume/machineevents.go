package resume

import (
	"time"

	"konnectivity/tunnel"
)

// EventKind is the kind of an Event.
type EventKind uint8

// The events, and the fields of an Event that they have besides Now.
const (
	Written         EventKind = iota // the application has written, and ends its direction if Fin
	Blocked                          // a writer waits, since Full is true; Scarce
	Sent                             // the sender has nothing more to give
	Took                             // a carrier has delivered N bytes, and the end if Fin; Epoch
	ReadDone                         // the same of a read that has returned, maybe nothing
	Acked                            // the peer has taken all before Offset; Big, Scarce, Epoch
	CarrierLost                      // the carrier has failed with Cause, or is to be left; Epoch
	CarrierDetached                  // the carrier that was left delivers nothing more
	Redial                           // the opener begins another attempt
	RedialFailed                     // an attempt failed with Cause
	Offered                          // the peer wants to resume by carrier Epoch, from Offset on
	CarrierUp                        // the carrier of Redial (Offset: what the peer has taken) or Offered is there; Epoch
	Closed                           // the application has closed the connection
	Reset                            // the application has reset it with Cause; Redials
	Degraded                         // memory is short: nothing is to be kept any more
	Evicted                          // too many connections are detached: this one is to end
	Forbidden                        // a policy forbids the destination of one that is to be resumed
	MoveBegins                       // it is to go to another process
	MoveFails                        // it stays
	MoveEnds                         // that process has it
	AckDue                           // the acknowledgement timer has fired
	DeadlineDue                      // the deadline timer has fired
)

// Event is something that has happened to a connection.
type Event struct {
	Kind    EventKind
	Fin     bool
	Big     bool // the peer can keep much
	Scarce  bool // memory is about to be
	Redials bool // there will be another carrier to tell the peer by
	Epoch   uint32
	N       int
	Offset  uint64
	Now     time.Time
	Cause   error
}

// Actions are a set of things to do after an event.
type Actions uint16

// The actions.
const (
	Send          Actions = 1 << iota // give the carrier what it lacks, and then step Sent
	Ack                               // acknowledge
	AckSoon                           // step AckDue after quiet
	WatchDeadline                     // step DeadlineDue after look
	Detach                            // end the carrier, not the connection, and then step CarrierDetached
	Dial                              // ask for another carrier, if this is the opener
	Attach                            // the carrier that is up is the connection's
	Answer                            // grant the carrier, and then step CarrierUp
	RefuseStale                       // refuse the carrier: a newer one was there
	RefuseGone                        // refuse the carrier: the connection is over
	RefuseMoving                      // refuse the carrier: the connection is on its way to another process
	Fail                              // tell the application that the connection is over
	Finish                            // forget the connection
	Wake                              // wake all waits, which look again
)

const (
	// refuses tells that a carrier is not to be attached.
	refuses = RefuseStale | RefuseGone | RefuseMoving

	// ends are what may be done still when a connection ends.
	ends = refuses | Fail | Finish | Wake
)

// Step takes in e and returns what to do about it. Events of a carrier that is not the
// newest change nothing.
func (m *Machine) Step(e Event) Actions {
	a := m.on(e)
	if !m.Over() {
		a |= m.conclude(e.Now)
	}
	switch {
	case a&Finish == 0:
		return a
	case m.life == Complete: // the peer is yet to hear that it all came to an end in order
		return a & (ends | Ack | Answer | Attach)
	default:
		return a & ends
	}
}

// on changes the state by the method of e's kind, which takes the fields that count. Carriers
// are read, written and asked for also where the connection is over.
func (m *Machine) on(e Event) Actions {
	switch e.Kind {
	case Sent:
		return m.sent()
	case ReadDone:
		return m.readDone(e.Epoch, e.N, e.Fin)
	case Took:
		return m.took(e.Epoch, e.N, e.Fin)
	case Offered:
		return m.offered(e.Epoch, e.Offset, e.Now)
	case CarrierUp:
		return m.carrierUp(e.Epoch, e.Offset, e.Now)
	case Redial:
		return m.redial(e.Now)
	}
	if m.Over() {
		return 0
	}
	return m.onLive(e)
}

// onLive is on for what changes nothing once the connection is over.
func (m *Machine) onLive(e Event) Actions {
	switch e.Kind {
	case Written:
		return m.written(e.Fin)
	case Blocked:
		return m.blocked(e.Scarce)
	case Acked:
		return m.acked(e.Epoch, e.Offset, e.Big, e.Scarce)
	case CarrierLost:
		return m.carrierLost(e.Epoch, e.Cause, e.Now)
	case CarrierDetached:
		return m.carrierDetached()
	case RedialFailed:
		return m.redialFailed(e.Cause)
	case Closed:
		return m.closed()
	case Reset:
		return m.reset(e.Cause, e.Redials, e.Now)
	case Degraded:
		return m.degraded()
	case Evicted:
		return m.evicted()
	case Forbidden:
		return m.finish(Denied, nil)
	case MoveBegins:
		return m.moveBegins(e.Now)
	case MoveFails:
		return m.moveFails()
	case MoveEnds:
		return m.finish(Moved, tunnel.ErrSeized)
	case AckDue:
		return m.ackDue()
	case DeadlineDue:
		return m.deadlineDue(e.Now)
	}
	return 0
}
