package tunnel

import (
	"sync"
	"sync/atomic"
)

const (
	// Headroom is kept free before the payload of a new chunk, so that a
	// link can put its frame header there without moving the payload.
	Headroom = 12

	// RecordSize is the payload of a full TLS record (RFC 8446 §5.1).
	RecordSize = 16 << 10

	// RecordRoom is the payload of a frame that fills a TLS record, header included.
	RecordRoom = RecordSize - Headroom

	// ChunkSize is the payload one chunk of the largest class holds: four
	// frames that fill a TLS record each, headers included.
	ChunkSize = 4 * RecordRoom
)

// classes are the sizes of pooled blocks: a small message, one TLS record, a
// bulk read. A block is never smaller than a quarter of what it must hold, so
// payload that waits in a queue pins at most a small multiple of itself. Each
// is a size of Go's allocator, which would round another up; and blocks of a
// record or more are spans of their own there, so that those that are kept do
// not pin those beside them that are not.
var classes = [...]int{2 << 10, RecordSize, 64 << 10}

// ofRecord is the class of one TLS record.
const ofRecord = 1

// pools hold idle blocks: a cache of memory, and no state. borrowed holds those
// without memory of their own.
var (
	pools    [len(classes)]sync.Pool
	borrowed sync.Pool
)

// block is one pooled piece of memory that several chunks may share.
type block struct {
	data  []byte
	class int
	owner interface{ Free() } // of data, where it was borrowed; else nil
	refs  atomic.Int32
}

// Chunk is payload handed on by reference instead of being copied. It is a
// value; its bytes belong to its holder until Release, which must be
// called exactly once per chunk. The zero Chunk is empty.
type Chunk struct {
	blk      *block
	off, end int
	head     int // bytes before off that belong to this chunk alone
}

// NewChunk returns a chunk of size bytes, at most ChunkSize, with undefined
// contents and Headroom before them. It panics when size is out of range.
func NewChunk(size int) Chunk {
	if size < 0 || size > ChunkSize {
		panic("tunnel: chunk size out of range")
	}
	class := 0
	for size+Headroom > classes[class] {
		class++
	}
	return Chunk{blk: newBlock(class), off: Headroom, end: Headroom + size, head: Headroom}
}

// NewRecord returns a chunk of RecordSize bytes with undefined contents, and
// without headroom.
func NewRecord() Chunk { return Chunk{blk: newBlock(ofRecord), end: RecordSize} }

func newBlock(class int) *block {
	blk, ok := pools[class].Get().(*block)
	if !ok {
		blk = &block{data: make([]byte, classes[class]), class: class}
	}
	blk.refs.Store(1)
	return blk
}

// CopyChunk returns a chunk with a copy of p, at most ChunkSize bytes.
func CopyChunk(p []byte) Chunk {
	c := newCopy(len(p))
	copy(c.Bytes(), p)
	return c
}

// newCopy is NewChunk without headroom where that would take a larger block: many
// programs write a whole record at once.
func newCopy(size int) Chunk {
	if size > RecordRoom && size <= RecordSize {
		return NewRecord().Slice(0, size)
	}
	return NewChunk(size)
}

// BorrowChunk returns a chunk over the memory of an owner, such as a
// receive buffer of gRPC; owner.Free is called once no chunk holds it any more.
// It has no headroom and must not be written to. It may be of any size.
func BorrowChunk(p []byte, owner interface{ Free() }) Chunk {
	blk, ok := borrowed.Get().(*block)
	if !ok {
		blk = &block{}
	}
	blk.data, blk.owner = p, owner
	blk.refs.Store(1)
	return Chunk{blk: blk, end: len(p)}
}

// Bytes is the payload. It is valid until Release.
func (c Chunk) Bytes() []byte {
	if c.blk == nil {
		return nil
	}
	return c.blk.data[c.off:c.end]
}

// Len is the number of bytes of payload.
func (c Chunk) Len() int { return c.end - c.off }

// Size is the memory the chunk keeps from being used again.
func (c Chunk) Size() int {
	if c.blk == nil {
		return 0
	}
	return len(c.blk.data)
}

// Slice narrows the chunk to payload bytes [i, j); it takes c's place and must
// be released instead of it.
func (c Chunk) Slice(i, j int) Chunk {
	head := c.head + i
	if c.blk != nil && c.blk.owner != nil {
		head = 0
	}
	return Chunk{blk: c.blk, off: c.off + i, end: c.off + j, head: head}
}

// View returns payload bytes [i, j) without a share in the memory: it is valid
// as long as c is, and must not be released. head is as for Share.
func (c Chunk) View(i, j, head int) Chunk {
	if c.blk.owner != nil {
		head = 0
	}
	return Chunk{blk: c.blk, off: c.off + i, end: c.off + j, head: min(head, c.off+i)}
}

// Keep turns a View into a chunk of its own, to be released by itself.
func (c Chunk) Keep() Chunk {
	c.blk.refs.Add(1)
	return c
}

// Share returns a second chunk over payload bytes [i, j), to be released by
// itself. The head bytes before i are the new chunk's own to overwrite.
func (c Chunk) Share(i, j, head int) Chunk { return c.View(i, j, head).Keep() }

// Append copies as much of p behind the payload as the block has room for, and
// returns how much. Only for a chunk that shares its block with no other.
func (c *Chunk) Append(p []byte) int {
	n := copy(c.blk.data[c.end:], p)
	c.end += n
	return n
}

// WithHeader returns n bytes for a header followed by the payload, as one
// slice without copying, or false where the n bytes before the payload are not
// the chunk's own.
func (c Chunk) WithHeader(n int) ([]byte, bool) {
	if n > c.head {
		return nil, false
	}
	return c.blk.data[c.off-n : c.end], true
}

// Release gives the memory back. Nothing may touch the bytes after it.
func (c Chunk) Release() {
	if c.blk == nil {
		return
	}
	switch refs := c.blk.refs.Add(-1); {
	case refs < 0:
		panic("tunnel: chunk released twice")
	case refs == 0 && c.blk.owner != nil:
		owner := c.blk.owner
		c.blk.data, c.blk.owner = nil, nil
		borrowed.Put(c.blk)
		owner.Free()
	case refs == 0:
		pools[c.blk.class].Put(c.blk)
	}
}

// LenAll is the number of bytes of payload of a batch.
func LenAll(batch []Chunk) (n int) {
	for _, c := range batch {
		n += c.Len()
	}
	return n
}

// ReleaseAll releases every chunk of a batch.
func ReleaseAll(batch []Chunk) {
	for i := range batch {
		batch[i].Release()
		batch[i] = Chunk{}
	}
}
