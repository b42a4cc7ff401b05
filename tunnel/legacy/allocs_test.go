package legacy

import (
	"testing"

	"google.golang.org/grpc/mem"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// gRPC takes messages as slices of interfaces, so one that is sent costs the
// slice; one that is too small for pooled buffers costs its bytes and their
// interface, too. protobuf's own codec takes 4 each way, and copies. What is
// received in frames large enough to be pooled is passed on as it is.
const (
	encodeBulk    = 1
	encodeMessage = 3
	decodeAny     = 0
)

func TestCodecAllocations(t *testing.T) {
	c := newCodec()
	message, into := &dataMessage{}, &packet{}
	for _, d := range []struct {
		name         string
		size, encode int
	}{{"bulk", 30 << 10, encodeBulk}, {"message", 64, encodeMessage}} {
		t.Run("encode "+d.name, func(t *testing.T) {
			testutil.MaxAllocs(t, float64(d.encode), func() {
				*message = dataMessage{id: 7, chunk: tunnel.NewChunk(d.size)}
				bufs, err := c.Marshal(message)
				if err != nil {
					t.Fatal(err)
				}
				bufs.Free()
			})
		})
		frames := received(t, d.size)
		t.Run("decode "+d.name, func(t *testing.T) {
			testutil.MaxAllocs(t, decodeAny, func() { decode(t, c, frames, into) })
		})
	}
}

// received is a DATA packet as gRPC hands it over: in pooled buffers, one for
// each frame of HTTP/2.
func received(t testing.TB, size int) (frames mem.BufferSlice) {
	for _, frame := range split(protoBytes(t, dataPacket(7, pattern(size))), 16<<10) {
		frames = append(frames, mem.Copy(frame.ReadOnlyData(), mem.DefaultBufferPool()))
	}
	t.Cleanup(frames.Free)
	return frames
}

func decode(t testing.TB, c interface {
	Unmarshal(mem.BufferSlice, any) error
}, frames mem.BufferSlice, into *packet) {
	into.data = into.data[:0]
	if err := c.Unmarshal(frames, into); err != nil {
		t.Fatal(err)
	}
	tunnel.ReleaseAll(into.data)
}
