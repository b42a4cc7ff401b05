// Package tunnel is the vocabulary of the suite.
//
// What is known of a connection, from what a front was asked for to the bytes
// that have passed, is its [Flow]. Everything that reaches a destination is a
// [Dialer]; everything that carries bytes is a [Conn], a net.Conn that can end
// each direction by itself; one [Relay] joins two of them. A [Forwarder] is what
// every front does with a Flow: dial, answer, relay, tell observers. Every binary
// is a composition of those, so kube-apiserver over a unix socket, a SOCKS5
// sidecar, an old agent and a new one all share one code path.
//
// Why a dial failed is a [DialError], why a connection was reset a [ResetError].
// Payload is handed on by reference, as a [Chunk]. A Conn receives by its
// [Source] and sends by its [Sink]; a Source that has a read loop delivers to
// the relay's [Receiver] on it, which saves a goroutine, and one that is read from a
// socket rests where nothing comes, which saves most of its stack. [Wrap] makes a Conn
// of any net.Conn, and [With] replaces a part of one.
//
// The package imports nothing but the standard library and tunnel/shares.
package tunnel
