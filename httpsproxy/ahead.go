package httpsproxy

import (
	"bufio"

	"konnectivity/tunnel"
)

// aheadSize is how much is read of what a client sends ahead of the answer to
// its CONNECT: any TLS ClientHello, and what net/http has buffered.
const aheadSize = 8 << 10

// ahead keeps what a client sends ahead of the answer to its CONNECT.
type ahead struct {
	conn tunnel.Conn
	held tunnel.Chunk // a pooled block; its first n bytes were sent ahead
	n    int
}

// newAhead starts with a copy of what was already read ahead.
func newAhead(conn tunnel.Conn, read []byte) *ahead {
	a := &ahead{conn: conn, held: tunnel.NewChunk(max(aheadSize, len(read)))}
	a.n = copy(a.held.Bytes(), read)
	return a
}

// Fill implements admission.Ahead.
func (a *ahead) Fill() (int, error) {
	if a.n == a.held.Len() {
		return a.n, bufio.ErrBufferFull
	}
	n, err := a.conn.Read(a.held.Bytes()[a.n:])
	a.n += n
	return a.n, err
}

// rest returns the connection with what was read ahead put back. It is called
// instead of drop.
func (a *ahead) rest() tunnel.Conn {
	defer a.drop()
	return tunnel.Unread(a.conn, a.held.Bytes()[:a.n])
}

// drop frees the memory.
func (a *ahead) drop() {
	a.held.Release()
	a.held = tunnel.Chunk{}
}
