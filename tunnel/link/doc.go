// Package link is the native protocol between the suite's own processes: one
// TLS connection that carries many streams, each with a credit window of its
// own, so that no connection slows another and TCP arrives as it was sent. The
// wire is described in docs/link-protocol.md.
//
// A byte's way through a session:
//
//	Stream.WriteChunks -> sender: sendQueue, a turn, frameWriter -> writeBuffer -> TLS -> kernel
//	kernel -> TLS -> frameReader -> recvHalf's queue -> ReadChunks, or a Receiver
//
// # Parts
//
// A Session consists of a reader, a writer and books.
//
// The frameReader (reader.go) is the read loop. It parses frames and hands them to
// streams. It never writes to the connection, and waits for no stream. Without streams it
// rests (rest.go): it holds no buffer, and waits on a small stack.
//
// The sender (sender.go) is the writing side. Its sendQueue orders frames and turns; its
// frameWriter writes them. A stream that has something to send takes the turn and writes on
// its own goroutine, which costs no hop while the link is idle. While another writes, it
// waits in line, or queues a copy of a small message for the present writer. Frames that
// open and end streams are queued for the flusher, a goroutine that gathers them.
//
// The books are the open streams (streams), the dials of the peer (intake), the counters
// (counters) and what frames tell of the peer (liveness, news).
//
// A stream is a Stream: a state, a half for each direction (recvHalf, sendHalf), and its
// part in a connection that outlives it (carrier).
//
// # States of a stream
//
// They are those of the specification's §4 (state.go has the transitions):
//
//	idle -> opening | dialing          OPEN sent | received
//	opening, dialing -> open           OPENED
//	open -> half-closed, local         FIN sent
//	open -> half-closed, remote        FIN received
//	half-closed -> ended               FIN the other way
//	ended -> closed                    at once; a connection that outlives the stream
//	                                   waits for both ends to be acknowledged
//	any but idle -> closed             RESET, or the loss of the link
//
// # States of the writer
//
// They regulate access to the connection (writerstate.go):
//
//	free     -> taken      a stream or the flusher takes the turn
//	taken    -> free       it ends its turn, and no stream waits in line
//	free     -> closing    the link is about to end; taken becomes draining
//	draining -> closing    the last writer ends its turn
//	closing  -> goodbye    GOAWAY is written
//	any      -> dead       the link has ended
//
// # The end
//
// failLocked ends a session, once. It keeps the cause, which every stream, Session.Err,
// the log and the counters tell (tunnel.LossCause).
//
// # Locks
//
// One mutex guards a session and its streams, but for what the reader or the writer own.
// Only arithmetic and list handling are done under it. A method that must be called with
// it held has a name that ends in Locked, or is only called by the read loop's parser;
// one that releases it meanwhile ends in Unlocked.
//
// A Session owns its connection from Connect or Accept on. Its callers are
// adapters/uplink, agent/linksession.go and server/links.go, in places by way of
// tunnel/lanes.
package link
