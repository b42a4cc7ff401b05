package tunnel

// Unread returns c with p put back in front of what it has yet to deliver, for
// whoever read ahead to learn what a connection carries: pipelined bytes of a
// handshake, a peeked first byte. p is copied. Nothing is slower once p has
// been read.
func Unread(c Conn, p []byte) Conn {
	if len(p) == 0 {
		return c
	}
	return With(c, Parts{In: &unread{head: append([]byte(nil), p...), next: c.In()}})
}

// unread belongs to the reader; only it touches head.
type unread struct {
	head []byte
	next Source
}

func (u *unread) Read(p []byte) (int, error) {
	if len(u.head) == 0 {
		return u.next.Read(p)
	}
	n := copy(p, u.head)
	u.drop(n)
	return n, nil
}

func (u *unread) ReadChunks(dst []Chunk) (int, error) {
	if len(u.head) == 0 {
		return u.next.ReadChunks(dst)
	}
	n := min(len(u.head), ChunkSize)
	dst[0] = CopyChunk(u.head[:n])
	u.drop(n)
	return 1, nil
}

// Deliver leaves the turn with its caller, as every Source does, and that reads
// the head before the rest.
func (u *unread) Deliver(r Receiver) bool { return u.next.Deliver(r) }

// drop forgets n bytes, and the memory with the last of them.
func (u *unread) drop(n int) {
	if u.head = u.head[n:]; len(u.head) == 0 {
		u.head = nil
	}
}
