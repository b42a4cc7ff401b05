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
// End, Outgoing and Incoming are pure: they have no I/O, no lock and no clock.
// They decide what an end keeps to send again, what it acknowledges, and what
// becomes of it as carriers come and go.
//
// Locks are taken in this order: Conn.mu, a link's, Conn.turn and Manager.mu. What
// a link calls with its own lock held (Ready, Fail, Lost) therefore takes only
// the last two.
//
// A Manager owns its Conns and their goroutines until Wait returns; the links are
// others'. It is called by adapters/uplink, by the agent and by each cluster of
// a server.
package resume
