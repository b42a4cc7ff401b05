package tunnel_test

import (
	"testing"

	"konnectivity/tunnel"
)

// Blocks are as large as what Go's allocator makes of them, and one that holds a
// record is no larger than that.
func TestBlocksWasteNothing(t *testing.T) {
	for what, c := range map[string]tunnel.Chunk{
		"a byte":            tunnel.NewChunk(1),
		"a quiet link's":    tunnel.NewQuiet(),
		"a full frame":      tunnel.NewChunk(tunnel.RecordRoom),
		"a record":          tunnel.NewRecord(),
		"a record's copy":   tunnel.CopyChunk(make([]byte, tunnel.RecordSize)),
		"the largest chunk": tunnel.NewChunk(tunnel.ChunkSize),
	} {
		if made := cap(append([]byte(nil), make([]byte, c.Size())...)); made != c.Size() {
			t.Errorf("%s is in a block of %d bytes, which takes %d", what, c.Size(), made)
		}
		if c.Len() <= tunnel.RecordSize && c.Size() > tunnel.RecordSize {
			t.Errorf("%s is in a block of %d bytes", what, c.Size())
		}
		c.Release()
	}
}
