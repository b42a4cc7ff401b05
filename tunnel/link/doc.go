// Package link is the native protocol between the suite's own processes: one
// TLS connection that carries many streams, each with a credit window of its
// own, so that no connection slows another and TCP arrives as it was sent. The
// wire is described in docs/link-protocol.md.
//
// A byte's way through a session:
//
//	Stream.WriteChunks -> turn (writer.go) -> cork -> TLS -> kernel
//	kernel -> TLS -> readLoop (reader.go) -> Stream queue -> ReadChunks
//
// The read loop only parses and hands over; it never writes to the connection
// and never waits for a stream. Whoever has something to send does so on its
// own goroutine when nobody else is sending (no hop when idle), and waits its
// turn, or leaves a small message with whoever is sending, when somebody is.
// What opens and ends streams is left with the flusher, which gathers it.
//
// One mutex guards a session and its streams. Nothing is done under it but
// arithmetic and list handling.
package link
