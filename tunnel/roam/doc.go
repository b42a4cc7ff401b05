// Package roam lets connections outlive the links that carry them
// (docs/link-protocol.md §9): an Ends keeps the ends that a process has of such
// connections, a Conn is one of them. It looks like any tunnel.Conn; the streams
// under it come and go.
//
// What an end keeps, and what becomes of it, is decided by package resume. This
// package adds the lock around that, the goroutines, and the streams.
//
// Locks are taken in this order: Conn.mu, a link's, Conn.turn and Ends.mu. What
// a link calls with its own lock held (Ready, Fail, Lost) therefore takes only
// the last two.
//
// An Ends owns its Conns and their goroutines until Wait returns; the links are
// others'. It is called by adapters/uplink, by the agent and by each cluster of
// a server.
package roam
