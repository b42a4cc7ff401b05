// Package link is the native protocol between the suite's own processes: one
// TLS connection that carries many streams, each with a credit window of its
// own, so that no connection slows another and TCP arrives as it was sent. The
// wire is described in docs/link-protocol.md.
//
// A byte's way through a session:
//
//	Stream.WriteChunks -> sender: sendQueue, a turn, frameWriter -> cork -> TLS -> kernel
//	kernel -> TLS -> frameReader -> recvHalf's queue -> ReadChunks, or a Receiver
//
// A Session is made of two sides and of books. The frameReader (reader.go) is the
// read loop: it only parses and hands over, never writes to the connection and never
// waits for a stream. The sender (sender.go) is who writes. What goes next is its
// sendQueue's to decide, which does nothing else. Whoever has something to send takes
// the turn and writes on its own goroutine when nobody else is sending (no hop
// when idle), and waits its turn, or leaves a small message with whoever is
// sending, when somebody is. What opens and ends streams is left with the
// flusher, which gathers it.
//
// The books are the streams, what the peer has under way here (intake), and what is
// counted. A Stream has a state, by the names of the specification (state.go), a half
// for each direction (halves.go), and what it knows of the connection that it carries
// (carrying). Whether the peer lives is the liveness's to judge. None of these parts
// has a lock of its own, and each is tested alone.
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
