package tunnel

import "net"

// Conn is a reliable byte stream that can end as TCP ends: each direction by
// itself (CloseWrite), both in order (Close), or all at once (Reset).
//
// As for every net.Conn, one goroutine may read while another writes, and
// Close and Reset may be called from anywhere, any number of times; both
// unblock pending reads and writes.
//
// Every method is mandatory, so that no wrapper can lose one unnoticed. To
// change one side of a Conn, With puts another Source or Sink in the place of
// its own. Wrap makes a Conn of any net.Conn.
type Conn interface {
	net.Conn // Read is In's, Write is Out's

	// CloseWrite ends the direction away from the caller, after everything
	// written before it. The other direction is untouched. A Write after it
	// fails. It does not block where Out is Nonblocking.
	CloseWrite() error

	// CloseFor is Close with a cause: a peer that goes on writing is told
	// CodeOf(cause), where the transport has a place for that.
	CloseFor(cause error) error

	// Reset ends both directions at once. Bytes in flight may be lost; the
	// peer reads what it already holds, then a *ResetError whose code is
	// CodeOf(cause), or as much of that as the transport can carry (TCP
	// carries only the fact). It then frees what Close would free.
	Reset(cause error) error

	// Failed returns the error that reads will return behind the bytes that have
	// arrived; nil while there is none, or where the stream ends in order. It
	// neither blocks nor reads, and may be called at any time from anywhere.
	Failed() error

	// In is the receiving side and Out the sending side. Both are the same
	// for as long as the Conn lives.
	In() Source
	Out() Sink
}

// Source is the receiving side of a Conn. It is either read, by Read or
// ReadChunks, from one goroutine at a time; or it delivers what arrives to a
// Receiver, on the goroutine that got it from the network (its read loop), which
// saves the goroutine that would wait for it.
//
// A Source that delivers lends one token, the turn to read, to at most one
// goroutine at a time. While the Source has the token, all bytes that arrived were
// taken, and it offers the next ones to Take. While a goroutine has it, bytes wait
// in the Source until that goroutine reads them.
type Source interface {
	// Read is the Conn's Read.
	Read(p []byte) (int, error)

	// ReadChunks waits for data as Read does, then takes the data that is there, at
	// most len(dst) chunks (len(dst) must not be 0), and returns how many.
	// The caller must release them. An error comes only with n == 0; the end
	// of the stream is io.EOF.
	//
	// Once Deliver has returned true, only the goroutine that has the turn may
	// call ReadChunks, and it does not wait: where it would, it returns 0 and no
	// error, which ends the turn. An error ends the stream.
	ReadChunks(dst []Chunk) (n int, err error)

	// Deliver makes the Source deliver to r for the rest of its life. It is
	// called once, and Read not at all after it. Its caller has the turn
	// then: r is offered nothing until ReadChunks was called as often as
	// it takes. Where Deliver returns false, nothing has changed: the Source
	// has no read loop to deliver on, and must be read.
	Deliver(r Receiver) bool

	// Rest makes a Source that has to be read take less memory while nothing comes: from
	// then on, where ReadChunks has waited for a second or two, it returns 0 and no error.
	// That ends the turn of the goroutine that reads, which then has to leave the Source
	// alone. Once there is something to read, r.Ready is called, and nothing else of r is
	// ever. Rest is called once, by the goroutine that is about to read. Where it returns
	// false, nothing has changed: ReadChunks waits.
	Rest(r Receiver) bool
}

// Receiver takes what a Source delivers. Every byte reaches it once and in
// order, by Take or by ReadChunks. The stream is over for it when End was called
// or ReadChunks has returned an error. One of the two always happens, also where
// this end closes or resets the Conn, unless the goroutine with the turn stops
// reading. After that only Flush and Fail may still be called.
type Receiver interface {
	// Take is offered a chunk that has just arrived and keeps what it can
	// deal with on the spot: it returns how many bytes that is, 0 where it is
	// busy. The rest waits for the next turn. The chunk remains the Source's;
	// the head bytes before its payload may be overwritten. Take runs on the
	// read loop, which holds no locks then, and must not block. It may reset
	// or close the Conn; the end then comes as it always does, by Ready and
	// ReadChunks, and the rest of the chunk is dropped.
	Take(c Chunk) int

	// Flush is called after one or more Takes, at the latest before the read
	// loop waits for more. Bytes that Take kept may be held back until then, to be
	// sent together. It runs on the read loop, too, and must not block.
	Flush()

	// Ready gives the turn to r, which is to start a goroutine that calls
	// ReadChunks. It is called while the Source has the turn, on any goroutine,
	// possibly with locks of the Source held: it must neither block nor call
	// the Source.
	Ready()

	// End reports that the stream has ended in order and all bytes were taken.
	// It runs on the read loop as Take does, while the Source has the turn. Where
	// bytes still wait before the end, ReadChunks reports it.
	End()

	// Fail reports that the stream has failed while a goroutine has the turn. That
	// goroutine may be stuck with earlier bytes and not hear of it. ReadChunks
	// returns the same error behind them. Fail is called as Ready
	// is: it must neither block nor call the Source.
	Fail(cause error)
}

// Sink is the sending side of a Conn. Its methods must not be called by two
// goroutines at once, except for Nonblocking and Flush, which may come at any time.
type Sink interface {
	// Write is the Conn's Write.
	Write(p []byte) (int, error)

	// WriteChunks writes all payload in order, blocks as Write does, and
	// releases every chunk, also when it fails.
	WriteChunks(src []Chunk) error

	// Nonblocking reports whether TryWrite takes anything at times and the
	// Conn's CloseWrite never blocks, so that both may be called on a read
	// loop. It does not change.
	Nonblocking() bool

	// TryWrite sends what it can of c's payload without blocking and returns
	// how many bytes that is, 0 where it is busy. The caller keeps c; the
	// head bytes before its payload may be overwritten. Bytes that were taken may
	// be gathered until Flush. The next Write reports a failure.
	TryWrite(c Chunk) int

	// Flush sends what TryWrite gathered. It does not block: bytes that the kernel
	// does not take now follow in the background.
	Flush()
}

// Under returns the first T among c and the connections under it, as far as each
// returns the next by NetConn, as crypto/tls does.
func Under[T any](c net.Conn) (found T, ok bool) {
	for c != nil {
		if found, ok = c.(T); ok {
			return found, true
		}
		c = under(c)
	}
	return found, false
}

// under returns the connection that c returns by NetConn; nil where it has no such
// method.
func under(c net.Conn) net.Conn {
	if on, ok := c.(interface{ NetConn() net.Conn }); ok {
		return on.NetConn()
	}
	return nil
}
