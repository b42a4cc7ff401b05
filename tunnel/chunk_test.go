package tunnel_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Blocks are as large as what Go's allocator makes of them, and one that holds a
// record is no larger than that.
func TestBlocksFillAllocatorClasses(t *testing.T) {
	for what, c := range map[string]tunnel.Chunk{
		"a byte":            tunnel.NewChunk(1),
		"a full frame":      tunnel.NewChunk(tunnel.RecordRoom),
		"a record":          tunnel.NewRecord(),
		"a record's copy":   tunnel.CopyChunk(make([]byte, tunnel.RecordSize)),
		"the largest chunk": tunnel.NewChunk(tunnel.ChunkSize),
	} {
		testutil.Equal(t, cap(append([]byte(nil), make([]byte, c.Size())...)), c.Size(), "%s takes", what)
		testutil.Holds(t, c.Len() > tunnel.RecordSize || c.Size() <= tunnel.RecordSize, "%s is in a block of %d bytes", what, c.Size())
		c.Release()
	}
}

// Whatever comes and is taken, in whatever pieces, comes out in order, and Held is the
// memory of what is there.
func TestChunkQueueModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		var q tunnel.ChunkQueue
		var want bytes.Buffer
		for range 100 {
			switch r.IntN(5) {
			case 0:
				p := random(r, 1+r.IntN(4<<10))
				want.Write(p)
				q.Push(tunnel.CopyChunk(p))
			case 1, 2:
				p := random(r, r.IntN(2<<10))
				want.Write(p)
				q.PushCopy(p, r.IntN(tunnel.RecordRoom))
			case 3:
				p := make([]byte, r.IntN(6<<10))
				n := q.Read(p)
				testutil.Requires(t, n == min(len(p), want.Len()) && bytes.Equal(p[:n], want.Next(n)),
					"seed %d: other bytes are read than came", seed)
			default:
				dst := make([]tunnel.Chunk, 1+r.IntN(3))
				held := q.Held()
				n := q.Take(dst)
				testutil.Requires(t, n != 0 || want.Len() == 0, "seed %d: nothing is taken of %d bytes", seed, want.Len())
				for _, c := range dst[:n] {
					testutil.Requires(t, bytes.Equal(c.Bytes(), want.Next(c.Len())),
						"seed %d: other bytes are taken than came", seed)
					held -= c.Size()
				}
				testutil.Equal(t, q.Held(), held, "seed %d: what is held behind it", seed)
				tunnel.ReleaseAll(dst[:n])
			}
			testutil.Requires(t, q.Empty() == (want.Len() == 0) && q.Empty() == (q.Held() == 0) && q.Held() >= want.Len(),
				"seed %d: %d bytes wait, %d are held, empty: %v", seed, want.Len(), q.Held(), q.Empty())
		}
		if q.Clear(); q.Held() != 0 || !q.Empty() {
			t.Fatalf("seed %d: %d bytes are held after Clear", seed, q.Held())
		}
	}
}

func random(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// Small pieces hold no more than the blocks that they fill. One behind a chunk that was
// pushed does not touch that chunk's block.
func TestChunkQueueSharesBlocks(t *testing.T) {
	const block = 2<<10 - tunnel.Headroom
	var q tunnel.ChunkQueue
	defer q.Clear()
	for range block / 100 {
		q.PushCopy(make([]byte, 100), block)
	}
	testutil.Equal(t, q.Held(), 2<<10, "bytes that pieces of 100 hold")
	q.PushCopy(make([]byte, 100), block)
	testutil.Equal(t, q.Held(), 4<<10, "bytes held, with a piece behind a full block")
	pushed := tunnel.CopyChunk([]byte("pushed"))
	q.Push(pushed)
	q.PushCopy([]byte("behind"), block)
	testutil.Equal(t, q.Held(), 8<<10, "bytes held behind a pushed chunk")
	testutil.Equal(t, string(pushed.Slice(0, 6).Bytes()), "pushed", "the chunk")
}

func TestChunkSharing(t *testing.T) {
	whole := tunnel.NewChunk(100)
	copy(whole.Bytes(), "header--payload")
	part := whole.Share(8, 15, 8)
	whole.Release()
	testutil.Equal(t, string(part.Bytes()), "payload", "the shared part")
	frame, ok := part.WithHeader(8)
	testutil.Equal(t, ok, true, "there is room for a header")
	testutil.Equal(t, string(frame), "header--payload", "the frame")
	_, ok = part.WithHeader(9)
	testutil.Equal(t, ok, false, "a header may reach into bytes of another chunk")
	part.Release()
	defer func() { testutil.Equal(t, recover() != nil, true, "a second Release is noticed") }()
	part.Release()
}

type countFree struct{ freed int }

func (c *countFree) Free() { c.freed++ }

func TestBorrowedChunkIsGivenBackOnce(t *testing.T) {
	owner := &countFree{}
	memory := []byte("somebody's memory")
	whole := tunnel.BorrowChunk(memory, owner)
	part := whole.Share(11, 17, 8)
	whole.Slice(0, 8).Release()
	testutil.Equal(t, owner.freed, 0, "how often it is given back while a part is held")
	testutil.Equal(t, string(part.Bytes()), "memory", "what part reads")
	testutil.Equal(t, part.Size(), len(memory), "its size")
	for _, c := range []tunnel.Chunk{part, part.Slice(3, 6)} {
		_, ok := c.WithHeader(1)
		testutil.Equal(t, ok, false, "borrowed memory may be written to before a part of it")
	}
	part.Release()
	testutil.Equal(t, owner.freed, 1, "how often it is given back")
}

func TestChunksAllocateNothing(t *testing.T) {
	payload, owner := make([]byte, 1000), &countFree{}
	testutil.Each(t, map[string]func(){
		"new":  func() { tunnel.NewChunk(tunnel.ChunkSize).Release() },
		"copy": func() { tunnel.CopyChunk(payload).Release() },
		"share": func() {
			c := tunnel.NewChunk(2000)
			s := c.Share(0, 1000, 0)
			c.Slice(1000, 2000).Release()
			s.Release()
		},
		"borrow": func() { tunnel.BorrowChunk(payload, owner).Release() },
	}, func(t *testing.T, f func()) { testutil.MaxAllocs(t, 0, f) })
}
