package tunnel_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"konnectivity/tunnel"
)

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
				if n != min(len(p), want.Len()) || !bytes.Equal(p[:n], want.Next(n)) {
					t.Fatalf("seed %d: other bytes are read than came", seed)
				}
			default:
				dst := make([]tunnel.Chunk, 1+r.IntN(3))
				n := q.Take(dst)
				if n == 0 && want.Len() > 0 {
					t.Fatalf("seed %d: nothing is taken of %d bytes", seed, want.Len())
				}
				for _, c := range dst[:n] {
					if !bytes.Equal(c.Bytes(), want.Next(c.Len())) {
						t.Fatalf("seed %d: other bytes are taken than came", seed)
					}
				}
				tunnel.ReleaseAll(dst[:n])
			}
			if q.Empty() != (want.Len() == 0) || q.Empty() != (q.Held() == 0) || q.Held() < want.Len() {
				t.Fatalf("seed %d: %d bytes wait, %d are held, empty: %v", seed, want.Len(), q.Held(), q.Empty())
			}
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
	if q.Held() != 2<<10 {
		t.Errorf("%d pieces of 100 bytes hold %d bytes", block/100, q.Held())
	}
	q.PushCopy(make([]byte, 100), block)
	if q.Held() != 4<<10 {
		t.Errorf("behind a full block a piece has them hold %d bytes", q.Held())
	}
	pushed := tunnel.CopyChunk([]byte("pushed"))
	q.Push(pushed)
	q.PushCopy([]byte("behind"), block)
	if q.Held() != 8<<10 || string(pushed.Slice(0, 6).Bytes()) != "pushed" {
		t.Errorf("behind a pushed chunk they hold %d bytes", q.Held())
	}
}
