package tunnel

// ChunkQueue is payload that waits for a reader, in order. It has no lock. The zero
// value is empty, and an empty queue holds no memory.
type ChunkQueue struct {
	chunks []Chunk
	held   int
	shared bool // the last chunk was made by PushCopy, so its block may take more
}

// Empty reports whether nothing waits.
func (q *ChunkQueue) Empty() bool { return len(q.chunks) == 0 }

// Held returns the memory in bytes that the queue keeps from being used again.
func (q *ChunkQueue) Held() int { return q.held }

// Push adds c, which is the queue's from then on.
func (q *ChunkQueue) Push(c Chunk) {
	q.chunks = append(q.chunks, c)
	q.held += c.Size()
	q.shared = false
}

// PushCopy adds a copy of p, at most ChunkSize bytes, so that small pieces share blocks:
// it goes behind the bytes of the PushCopy before it, as far as their block has room,
// and the rest into a new block with room for at least size bytes.
func (q *ChunkQueue) PushCopy(p []byte, size int) {
	if q.shared {
		p = p[q.chunks[len(q.chunks)-1].Append(p):]
	}
	if len(p) == 0 {
		return
	}
	c := newCopy(max(size, len(p))).Slice(0, 0)
	c.Append(p)
	q.Push(c)
	q.shared = true
}

// Take moves the first chunks to dst, and returns how many.
func (q *ChunkQueue) Take(dst []Chunk) int {
	n := copy(dst, q.chunks)
	q.drop(n)
	return n
}

// Read copies the first bytes to p, and returns how many.
func (q *ChunkQueue) Read(p []byte) (n int) {
	for n < len(p) && !q.Empty() {
		first := q.chunks[0]
		m := copy(p[n:], first.Bytes())
		n += m
		if m < first.Len() {
			q.chunks[0] = first.Slice(m, first.Len())
			break
		}
		q.drop(1)
		first.Release()
	}
	return n
}

// Clear frees everything.
func (q *ChunkQueue) Clear() {
	ReleaseAll(q.chunks)
	*q = ChunkQueue{}
}

// drop forgets the first n chunks.
func (q *ChunkQueue) drop(n int) {
	if n == len(q.chunks) {
		*q = ChunkQueue{}
		return
	}
	for i := range n {
		q.held -= q.chunks[i].Size()
		q.chunks[i] = Chunk{}
	}
	q.chunks = q.chunks[n:]
}
