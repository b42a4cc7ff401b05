package legacy

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"konnectivity/tunnel"
)

// Whatever comes and is taken, in whatever pieces, comes out in order, and held is
// what is there.
func TestBacklogKeepsOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var b backlog
		var want bytes.Buffer
		held := 0
		for range 100 {
			switch r.IntN(4) {
			case 0, 1:
				p := make([]byte, 1+r.IntN(2*joinBelow))
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				want.Write(p)
				held += b.add(tunnel.CopyChunk(p))
			case 2:
				if b.empty() {
					continue
				}
				p := make([]byte, 1+r.IntN(joinBlock))
				n, less := b.read(p)
				held -= less
				if n == 0 || !bytes.Equal(p[:n], want.Next(n)) {
					t.Fatal("other bytes are read than came")
				}
			default:
				dst := make([]tunnel.Chunk, 1+r.IntN(3))
				n, less := b.take(dst)
				held -= less
				for _, c := range dst[:n] {
					if !bytes.Equal(c.Bytes(), want.Next(c.Len())) {
						t.Fatal("other bytes are taken than came")
					}
				}
				tunnel.ReleaseAll(dst[:n])
			}
			if held != b.held || b.empty() != (want.Len() == 0) || b.empty() != (held == 0) {
				t.Fatalf("%d bytes wait: %d are told as held, held is %d, empty: %v", want.Len(), held, b.held, b.empty())
			}
		}
		if less := b.clear(); less != held || b.held != 0 || !b.empty() {
			t.Fatalf("cleared of %d, held %d before and %d now", less, held, b.held)
		}
	}
}

// Small packets hold no more than the blocks that they fill, unless they come behind
// a large one, whose block is not theirs.
func TestBacklogJoinsSmallPackets(t *testing.T) {
	var b backlog
	defer b.clear()
	block := b.add(tunnel.CopyChunk(make([]byte, 100)))
	for range joinBlock/100 - 1 {
		if more := b.add(tunnel.CopyChunk(make([]byte, 100))); more != 0 {
			t.Fatalf("a small packet holds %d more, where a block has room", more)
		}
	}
	if more := b.add(tunnel.CopyChunk(make([]byte, 100))); more != block || len(b.chunks) != 2 {
		t.Errorf("behind a full block: %d more, in %d chunks", more, len(b.chunks))
	}
	large := b.add(tunnel.CopyChunk(make([]byte, joinBelow+1)))
	if more := b.add(tunnel.CopyChunk(make([]byte, 100))); large == 0 || more != block {
		t.Errorf("behind a large one: %d more, want a block of its own", more)
	}
}
