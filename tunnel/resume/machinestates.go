package resume

// State is where a connection is in its life, as in docs/link-protocol.md §9.
type State uint8

// The states of a connection.
const (
	StateAttached  State = iota // it has a carrier
	StateDetached               // it waits for the next carrier
	StateLingering              // its application has left it; the peer lacks some of it
	StateGone                   // it is over
)

// CarrierState is the state of what carries the connection.
type CarrierState uint8

// The states of a carrier.
const (
	Attached  CarrierState = iota // a stream carries the connection
	Unproven                      // so does one that the peer resumed by, and has not used yet
	Detaching                     // the stream was left; it may still deliver something
	Draining                      // it delivers nothing more; a read or a write of it is under way
	Detached                      // there is none: the offsets are final
	Dialing                       // an opener asks for the next carrier
	Answering                     // an acceptor grants the next carrier
)

// Phase tells what a connection is there for. It stays as it was when the connection is over.
type Phase uint8

// The phases of a connection.
const (
	InUse     Phase = iota // its application uses it, or has left it in order
	Abandoned              // it was reset without a carrier: the next one is to tell the peer
	Moving                 // it is on its way to another process: no carrier is granted meanwhile
)

// Life tells whether a connection is over, and why.
type Life uint8

// The lives of a connection.
const (
	Live         Life = iota // it is not over
	Complete                 // both directions ended, and the peer has taken all
	Ended                    // one of the ends has reset it
	Moved                    // it is another process's now
	Unconfirmed              // its application had left it, and the peer did not confirm the last bytes
	Expired                  // no carrier came within the window
	Unknown                  // the peer does not know it, or not any more
	Contradicted             // the peer contradicted itself
	Discarded                // what it kept was given up for lack of memory, and its carrier was lost
	Fruitless                // it was resumed again and again, and nothing came of it
	Denied                   // a policy forbids its destination by now

	Lives // how many there are
)

// lifeLabels has those of lives that are over.
var lifeLabels = [Lives]string{
	Complete: "complete", Ended: "ended", Moved: "moved", Unconfirmed: "unconfirmed", Expired: "window", Unknown: "unknown",
	Contradicted: "contradiction", Discarded: "memory", Fruitless: "fruitless", Denied: "denied",
}

// Label is why the connection is over, as a value of a metric's label.
func (l Life) Label() string { return lifeLabels[l] }

// givenUp reports whether the connection has ended before its ends were through with it.
func (l Life) givenUp() bool {
	switch l {
	case Live, Complete, Ended, Moved:
		return false
	}
	return true
}

// ReaderState tells what becomes of bytes that arrive.
type ReaderState uint8

// The states of the reader.
const (
	Reading  ReaderState = iota // the application takes them
	Dropping                    // the application has closed the connection: they are taken and dropped
)

// SenderState tells who gives the carrier what it lacks.
type SenderState uint8

// The states of the sender.
const (
	SenderIdle   SenderState = iota
	SenderTask               // a goroutine of the Conn
	SenderWriter             // the application's own write, which a deadline may interrupt
)

// timers are those under way.
type timers uint8

const (
	ackTimer timers = 1 << iota
	deadlineTimer
)
