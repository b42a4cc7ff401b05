package legacy

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func dataPacket(id int64, payload []byte) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DATA,
		Payload: &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: payload}},
	}
}

func pattern(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	return p
}

func encoded(t testing.TB, m any) []byte {
	t.Helper()
	bufs := testutil.Must(newCodec().Marshal(m))(t)
	defer bufs.Free()
	return bufs.Materialize()
}

func protoBytes(t testing.TB, m proto.Message) []byte {
	t.Helper()
	return testutil.Must(proto.Marshal(m))(t)
}

// split cuts a message into buffers of the given size, as HTTP/2 frames do.
func split(b []byte, size int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > size && size > 0 {
		out = append(out, mem.SliceBuffer(b[:size]))
		b = b[size:]
	}
	return append(out, mem.SliceBuffer(b))
}

func payloadOf(p *packet) []byte {
	var out []byte
	for _, c := range p.data {
		out = append(out, c.Bytes()...)
	}
	return out
}

// countingPool counts what is out, to see that nothing is copied or kept.
type countingPool struct{ out int }

func (p *countingPool) Get(n int) *[]byte { p.out++; b := make([]byte, n); return &b }

func (p *countingPool) Put(*[]byte) { p.out-- }

func TestPayloadIsHandedOnByReference(t *testing.T) {
	pool := &countingPool{}
	buf := pool.Get(0)
	*buf = protoBytes(t, dataPacket(7, pattern(9000)))
	received := mem.BufferSlice{mem.NewBuffer(buf, pool)}
	p := &packet{}
	testutil.NoError(t, newCodec().Unmarshal(received, p))
	received.Free() // as gRPC does
	testutil.Equal(t, pool.out, 1, "buffers out")
	testutil.Requires(t, len(p.data) == 1, "%d chunks, want 1", len(p.data))
	testutil.Equal(t, &p.data[0].Bytes()[0], &(*buf)[len(*buf)-9000], "where the payload is")
	tunnel.ReleaseAll(p.data)
	testutil.Equal(t, pool.out, 0, "buffers that were not given back")

	chunk := tunnel.CopyChunk(pattern(9000))
	first := &chunk.Bytes()[0]
	bufs := testutil.Must(newCodec().Marshal(&dataMessage{id: 7, chunk: chunk}))(t)
	sent := bufs[len(bufs)-1].ReadOnlyData()
	testutil.Equal(t, &sent[len(sent)-9000], first, "where the payload is that is sent")
	bufs.Free()
}

// samples are messages as real encoders write them, and with what they may
// hold besides.
func samples(t testing.TB) [][]byte {
	data := protoBytes(t, dataPacket(9, pattern(2000)))
	inner := protoBytes(t, &client.Data{ConnectID: 3, Data: []byte("abc"), Error: "e"})
	unknown := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "later")
	swapped := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 4)
	swapped = append(protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), inner), swapped...)
	innerSwapped := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), []byte("payload first"))
	innerSwapped = protowire.AppendVarint(protowire.AppendTag(innerSwapped, 1, protowire.VarintType), 77)
	return [][]byte{
		data, swapped, nil, {8, 4}, {8, 4, 0x22, 0}, {8, 0x84, 0, 0x22, 0}, {0x78, 4, 0x22, 0}, {8, 4, 0x1a, 0},
		append(append([]byte{}, unknown...), data...),
		append(append([]byte{}, data...), unknown...),
		append(append([]byte{}, data...), data...), // the same field twice is merged
		protowire.AppendBytes([]byte{8, 4, 0x22}, innerSwapped),
		protowire.AppendBytes([]byte{8, 4, 0x22}, append(innerSwapped, unknown...)),
		protoBytes(t, dialRequest(1<<62, "tcp", "example.com:443")),
		protoBytes(t, dialResponse(-5, 12, "no such host")),
		protoBytes(t, dialClose(77)), protoBytes(t, closeRequest(8)),
		protoBytes(t, closeResponse(8, "gone")), protoBytes(t, drain()),
		{0x08, 0x04, 0x22, 0x05, 0x1a, 0x7f}, // payload longer than its message
		{0x08, 0x04, 0x22, 0x02, 0x08, 0xff, 0x01},
		{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
	}
}

// likeProtobuf compares decoding with protobuf's own, for any bytes in any buffers, and
// then the encoding of the result.
func likeProtobuf(t testing.TB, message []byte, size int) {
	want := &client.Packet{}
	wantErr := proto.Unmarshal(message, want)
	p := &packet{}
	err := newCodec().Unmarshal(split(message, size), p)
	testutil.Equal(t, err == nil, wantErr == nil, "it has no error, %v, as protobuf has: %v", err, wantErr)
	if err != nil {
		testutil.Equal(t, len(p.data), 0, "chunks with an error")
		return
	}
	testutil.Equal(t, p.kind, want.Type, "type")
	if p.kind != client.PacketType_DATA {
		testutil.Equal(t, proto.Equal(p.rest, want), true, "%v is %v", p.rest, want)
		return
	}
	payload := payloadOf(p)
	if p.id != want.GetData().GetConnectID() || !bytes.Equal(payload, want.GetData().GetData()) {
		t.Fatalf("connection %d with %d bytes, want %v", p.id, len(payload), want)
	}
	tunnel.ReleaseAll(p.data)
	canonical := protoBytes(t, dataPacket(p.id, payload))
	if bytes.Equal(message, canonical) {
		fast := &packet{}
		testutil.Equal(t, fast.parseData(split(message, size)), true, "it is taken for DATA")
		tunnel.ReleaseAll(fast.data)
	}
	if len(payload) > tunnel.ChunkSize {
		return
	}
	// With and without room for a header before it.
	for _, c := range []tunnel.Chunk{
		tunnel.CopyChunk(payload), tunnel.BorrowChunk(payload, mem.SliceBuffer(payload)),
	} {
		again := encoded(t, &dataMessage{id: p.id, chunk: c})
		testutil.Equal(t, bytes.Equal(again, canonical), true, "encoded as protobuf has it")
	}
}

func FuzzPacket(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b, uint16(0))
		f.Add(b, uint16(1))
		f.Add(b, uint16(7))
	}
	f.Fuzz(func(t *testing.T, message []byte, size uint16) { likeProtobuf(t, message, int(size)) })
}

// Messages that are too large for seeds.
func TestData(t *testing.T) {
	for _, id := range []int64{0, 1, 127, 128, 1 << 35, math.MaxInt64, -1, math.MinInt64} {
		for _, size := range []int{0, 1, 127, 128, copyBelow, copyBelow + 1, tunnel.ChunkSize} {
			likeProtobuf(t, protoBytes(t, dataPacket(id, pattern(size))), 16<<10)
		}
	}
	message := protoBytes(t, dataPacket(1<<40, pattern(3000)))
	for size := range len(message) {
		likeProtobuf(t, message, size)
	}
}

func TestCodecPassesOtherMessagesOn(t *testing.T) {
	want := dialRequest(3, "tcp", "a:1")
	got := &client.Packet{}
	b := encoded(t, want)
	testutil.NoError(t, newCodec().Unmarshal(split(b, 2), got))
	testutil.Equal(t, proto.Equal(got, want), true, "%v is %v", got, want)
	testutil.Equal(t, newCodec().Name(), "proto", "the name that peers know")
}

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
				bufs := testutil.Must(c.Marshal(message))(t)
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
	testutil.NoError(t, c.Unmarshal(frames, into))
	tunnel.ReleaseAll(into.data)
}
