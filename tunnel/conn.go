package tunnel

import "net"

// Conn is a reliable byte stream that can end as TCP ends: each direction by
// itself (CloseWrite), both in order (Close), or all at once (Reset).
//
// As for every net.Conn, one goroutine may read while another writes, and
// Close and Reset may be called from anywhere, any number of times; both
// unblock pending reads and writes.
//
// Every part is mandatory, so that no wrapper can lose one without a word.
// What a wrapper changes is one side: With puts another Source or Sink in the
// place of a Conn's own. Wrap makes a Conn of any net.Conn.
type Conn interface {
	net.Conn // its Read is In's, its Write is Out's

	// CloseWrite ends the direction away from the caller, after everything
	// written before it. The other direction is untouched. A Write after it
	// fails. It does not block where Out is Nonblocking.
	CloseWrite() error

	// CloseFor is Close where the other direction is void, and cause is why: a peer
	// that goes on writing is told CodeOf(cause), where the transport has a place for
	// that.
	CloseFor(cause error) error

	// Reset ends both directions at once. What is in flight may be lost; the
	// peer reads what it already holds, then a *ResetError whose code is
	// CodeOf(cause), or as much of that as the transport can carry (TCP
	// carries only the fact). It then frees what Close would free.
	Reset(cause error) error

	// Failed tells why reads will fail once what has come was read; nil where
	// they will not as yet, or will find an end in order. It neither blocks
	// nor reads, and may be called at any time from anywhere.
	Failed() error

	// In is the receiving side and Out the sending side. Both are the same
	// for as long as the Conn lives.
	In() Source
	Out() Sink
}

// Under returns the first T among c and what lies under it, as far as each
// names the next by NetConn, as crypto/tls does.
func Under[T any](c net.Conn) (found T, ok bool) {
	for c != nil {
		if found, ok = c.(T); ok {
			return found, true
		}
		c = under(c)
	}
	return found, false
}

// under is what c says that it lies on; nil where it does not.
func under(c net.Conn) net.Conn {
	if on, ok := c.(interface{ NetConn() net.Conn }); ok {
		return on.NetConn()
	}
	return nil
}
