package tunnel

import "net"

// Unread returns c with p put back in front of what it has yet to deliver, for
// whoever read ahead to learn what a connection carries: pipelined bytes of a
// handshake, a peeked first byte. p is copied. Chunks pass as they do on c, so
// nothing is slower once p has been read.
func Unread(c Conn, p []byte) Conn {
	if len(p) == 0 {
		return c
	}
	u := &unread{Conn: c, head: append([]byte(nil), p...)}
	r, reads := c.(ChunkReader)
	w, writes := c.(ChunkWriter)
	if reads && writes {
		return &unreadChunks{unread: u, ChunkWriter: w, next: r}
	}
	return u
}

// unread belongs to the reader; only Read touches head.
type unread struct {
	Conn
	head []byte
}

func (u *unread) Read(p []byte) (int, error) {
	if len(u.head) == 0 {
		return u.Conn.Read(p)
	}
	n := copy(p, u.head)
	u.drop(n)
	return n, nil
}

// NetConn is what was read ahead from.
func (u *unread) NetConn() net.Conn { return u.Conn }

// drop forgets n bytes, and the memory with the last of them.
func (u *unread) drop(n int) {
	if u.head = u.head[n:]; len(u.head) == 0 {
		u.head = nil
	}
}

// unreadChunks is unread over a Conn that passes chunks.
type unreadChunks struct {
	*unread
	ChunkWriter
	next ChunkReader
}

// ReadChunks implements ChunkReader.
func (u *unreadChunks) ReadChunks(dst []Chunk) (int, error) {
	if len(u.head) == 0 {
		return u.next.ReadChunks(dst)
	}
	n := min(len(u.head), ChunkSize)
	dst[0] = CopyChunk(u.head[:n])
	u.drop(n)
	return 1, nil
}
