package resume

import "time"

// Actions are a set of things to do after an event.
type Actions uint16

// The actions.
const (
	Used          Actions = 1 << iota // note that the application has read or written
	Send                              // give the carrier what it lacks; then comes Sent
	Ack                               // acknowledge
	AckSoon                           // AckDue comes after quiet
	WatchDeadline                     // DeadlineDue comes after look
	Detach                            // end the carrier, not the connection; then comes CarrierDetached
	Dial                              // ask for another carrier, if this is the opener
	Attach                            // the carrier that is up is the connection's
	Answer                            // grant the carrier; then comes CarrierUp
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

// Settle completes the actions of an event. It leaves out those that make no sense any more
// where the event has ended the connection.
func (m *Machine) Settle(a Actions, now time.Time) Actions {
	if !m.Over() {
		a |= m.conclude(now)
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
