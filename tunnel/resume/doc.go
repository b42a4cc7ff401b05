// Package resume lets connections outlive the links that carry them
// (docs/link-protocol.md §9). A Manager maps tokens to the connections of a
// process; a Conn is one end of a connection. It looks like any tunnel.Conn; the
// streams under it, its carriers, come and go.
//
// A connection has two ends. The opener dialed it, and resumes it; the acceptor
// waits for that. Both directions are numbered sequences: the
// byte at offset 0 comes first, and the end of a direction counts as one more
// after its last byte, as in TCP. So an acknowledgement is one number: the offset
// below which all was taken.
//
// # States
//
// All of a connection's state is in its Machine, which is pure: it takes events,
// the time among them, and returns actions. Its Conn asks it by methods, and
// changes it by no other way. It has these states:
//
//	life      Live, then one for each way to be over
//	phase     InUse, Abandoned, Moving
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
// The offsets that the ends exchange to go on are final only in Detached: until then the
// carrier that was left may still deliver bytes, or take some. The window runs from
// Detaching on, and ends by DeadlineDue. A connection InUse whose application has left both
// directions lingers until the peer has taken all, by Acked or CarrierUp. An Abandoned
// connection was reset without a carrier, and ends with the next CarrierUp; an acceptor that was
// reset is over, and answers Offered so that its peer gets a carrier that is reset. A Moving one is
// on its way to another process (docs/handover.md): it gets no carrier, takes all that its
// relay still has, and ends with MoveEnds.
//
// # Parts
//
// Machine, Outgoing and Incoming have no I/O, no lock and no clock. A
// Conn has the lock, the stream and the waits of the application, and carries out the
// actions of its Machine. While it is attached, it has no goroutine. Redials have
// a redialQueue, figures and memory an accounting, the turn to read a readToken, and an
// acceptor's dials a dial; its endings have what it has reset lately. In a process between the
// ends, which has no Conn, Splice joins the two streams of a connection.
//
// Locks are taken in this order: Conn.mu, a link's, readToken.mu, taskQueue.mu and
// Manager.mu or endings.mu. What a link calls with its own lock held (Ready, Fail, Lost, Move)
// therefore takes only the last three.
//
// A Manager owns its Conns and their goroutines until Wait returns; the links are
// others'. It is called by adapters/uplink, by the agent and by each cluster of
// a server.
package resume
