package legacy

import "konnectivity/tunnel"

const (
	// joinBelow is the payload that is added to the block before it instead
	// of keeping one of its own, so that many small packets do not pin a
	// multiple of their size.
	joinBelow = 1 << 10

	// joinBlock is the payload of a block that small packets share: the
	// smallest class of blocks.
	joinBlock = 2<<10 - tunnel.Headroom
)

// backlog is the chunks that wait for a reader, in order; small ones share blocks. It
// has no lock, and the zero value is empty. Each method that changes what it holds
// says by how many bytes of memory.
type backlog struct {
	chunks []tunnel.Chunk
	tail   tunnel.Chunk // the last chunk's whole block while it has room; else empty
	held   int
}

func (b *backlog) empty() bool { return len(b.chunks) == 0 }

// add takes c over.
func (b *backlog) add(c tunnel.Chunk) (more int) {
	switch {
	case c.Len() > joinBelow:
		b.tail = tunnel.Chunk{}
	case b.join(c):
		return 0
	default:
		b.tail = tunnel.NewChunk(joinBlock)
		copy(b.tail.Bytes(), c.Bytes())
		n := c.Len()
		c.Release()
		c = b.tail.Slice(0, n)
	}
	b.chunks = append(b.chunks, c)
	b.held += c.Size()
	return c.Size()
}

// join puts c, which is small, into the last block, if there is room.
func (b *backlog) join(c tunnel.Chunk) bool {
	if b.empty() || b.tail.Len() == 0 {
		return false
	}
	last := &b.chunks[len(b.chunks)-1]
	used := last.Len()
	if b.tail.Len() < used+c.Len() {
		return false
	}
	copy(b.tail.Bytes()[used:], c.Bytes())
	*last = b.tail.Slice(0, used+c.Len())
	c.Release()
	return true
}

// take moves chunks to dst.
func (b *backlog) take(dst []tunnel.Chunk) (n, less int) {
	n = copy(dst, b.chunks)
	return n, b.drop(n)
}

// read copies from the first chunk, of which there must be one, to p.
func (b *backlog) read(p []byte) (n, less int) {
	first := b.chunks[0]
	n = copy(p, first.Bytes())
	if n == first.Len() {
		less = b.drop(1)
		first.Release()
		return n, less
	}
	if len(b.chunks) == 1 {
		b.tail = tunnel.Chunk{} // its front no longer lines up
	}
	b.chunks[0] = first.Slice(n, first.Len())
	return n, 0
}

// clear frees everything.
func (b *backlog) clear() (less int) {
	less = b.held
	tunnel.ReleaseAll(b.chunks)
	*b = backlog{}
	return less
}

// drop forgets the first n chunks, which are somebody else's now.
func (b *backlog) drop(n int) (less int) {
	for _, c := range b.chunks[:n] {
		less += c.Size()
	}
	clear(b.chunks[:n])
	if b.chunks = b.chunks[n:]; len(b.chunks) == 0 {
		b.chunks, b.tail = nil, tunnel.Chunk{} // an idle connection holds nothing
	}
	b.held -= less
	return less
}
