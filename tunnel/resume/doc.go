// Package resume lets connections outlive the links that carry them
// (docs/link-protocol.md §9). A Manager maps tokens to the connections of a
// process; a Conn is one end of a connection. It looks like any tunnel.Conn; the
// streams under it, its carriers, come and go.
//
// A connection has two ends. The opener dialed it and is the one that resumes;
// the acceptor waits to be resumed. Both directions are numbered sequences: the
// byte at offset 0 comes first, and the end of a direction counts as one more
// after its last byte, as in TCP. So one number, the count of what was taken,
// says all that the other end has to know.
//
// # States
//
// All of a connection's state is in its Machine, which is pure: it takes events,
// the time among them, and returns actions. It has these states:
//
//	life      Live, Abandoned, then one for each way to be over
//	carrier   Attached, Unproven, Detaching, Draining, Detached, Dialing, Answering
//	reader    Reading, Dropping
//	sender    SenderIdle, SenderTask, SenderWriter
//
// A carrier is known by its epoch; events of an older one change nothing. The
// states of the carrier follow each other so:
//
//	Attached, Unproven  CarrierLost, a newer Offered   Detaching  (action Detach)
//	Unproven            Took, Acked                    Attached
//	Detaching           CarrierDetached                Draining
//	Draining            the last Sent or ReadDone      Detached   (action Dial)
//	Detached            Redial, at an opener           Dialing
//	Dialing             RedialFailed                   Detached
//	Dialing             CarrierUp                      Attached   (action Attach)
//	Detached            Offered, at an acceptor        Answering  (action Answer)
//	Answering           CarrierUp                      Unproven   (action Attach)
//	Answering           CarrierLost                    Detached
//	Dialing, Answering  a newer Redial or Offered      the same
//
// Only in Detached is it final what was taken out of the carriers before, and
// given to them: nobody is told where to go on in another state. From Detaching on
// the window runs; DeadlineDue ends it. A Live connection that lost its last use
// on this side lingers until the peer has all of it, by Acked or CarrierUp. One
// that is Abandoned was reset without a carrier, and ends with the next CarrierUp.
//
// # Parts
//
// Machine, Outgoing, Incoming and replayLimit have no I/O, no lock and no clock. A
// Conn holds the lock, the stream and the application's waits, and carries out
// what the Machine says. While it is attached, a Conn has no goroutine. Apart from
// it are the queue of redials (redialQueue), what is counted (accounting), the
// turn to read (readToken), and dials for connections to be (dial).
//
// Locks are taken in this order: Conn.mu, a link's, readToken.mu, taskQueue.mu and
// Manager.mu. What a link calls with its own lock held (Ready, Fail, Lost, Move)
// therefore takes only the last three.
//
// A Manager owns its Conns and their goroutines until Wait returns; the links are
// others'. It is called by adapters/uplink, by the agent and by each cluster of
// a server.
package resume
