// Package link is the native protocol between the suite's own processes: one
// TLS connection that carries many streams, each with a credit window of its
// own, so that no connection slows another and TCP arrives as it was sent. The
// wire is described in docs/link-protocol.md.
//
// A byte's way through a session:
//
//	Stream.WriteChunks -> sendQueue, a turn -> frameWriter -> cork -> TLS -> kernel
//	kernel -> TLS -> readLoop -> recvHalf's queue -> ReadChunks, or a Receiver
//
// The read loop (reader.go) only parses and hands over; it never writes to the
// connection and never waits for a stream. What goes next is the sendQueue's to
// decide, which does nothing else. Whoever has something to send takes the turn
// (turn.go) and writes on its own goroutine when nobody else is sending (no hop
// when idle), and waits its turn, or leaves a small message with whoever is
// sending, when somebody is. What opens and ends streams is left with the
// flusher, which gathers it.
//
// A Stream has a state, by the names of the specification (state.go), and a half
// for each direction (halves.go). Whether the peer lives is the liveness's to
// judge. None of these parts has a lock, and each is tested alone.
//
// One mutex guards a session and its streams. Nothing is done under it but
// arithmetic and list handling. A method that wants it held has a name that ends
// in Locked, or is only called by the read loop's parser; one that releases it
// meanwhile ends in Unlocked.
//
// A Session owns its connection from Connect or Accept on. Its callers are
// adapters/uplink, agent/link.go and server/links.go, in places by way of
// tunnel/lanes.
package link
