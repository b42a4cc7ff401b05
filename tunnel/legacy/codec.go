package legacy

import (
	"encoding/binary"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// ServerCodec makes a gRPC server that can register the services of this
// package. Messages of other services on it are treated as ever.
func ServerCodec() grpc.ServerOption { return grpc.ForceServerCodecV2(newCodec()) }

// codec is gRPC's protobuf codec, except that the payload of DATA is neither
// copied when sent nor when received. gRPC itself copies once each way between
// a message and HTTP/2 frames; that is the least it can do.
type codec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 {
	return codec{encoding.GetCodecV2(grpcproto.Name)}
}

// The tags (field number and wire type) of the fields in a DATA packet, from
// client.proto. All are below 16, so each is one byte.
const (
	wireVarint = 0
	wireBytes  = 2 // length-delimited

	tagType    = 1<<3 + wireVarint // Packet.type
	tagData    = 4<<3 + wireBytes  // Packet.data
	tagConn    = 1<<3 + wireVarint // Data.connectID
	tagPayload = 3<<3 + wireBytes  // Data.data
)

const (
	// maxHeader is the longest a DATA packet is before its payload: type 2, tag
	// and length 6, id 11, tag and length 6.
	maxHeader = 25

	// copyBelow is the payload size up to which copying is cheaper than
	// counting references; gRPC does not pool buffers up to it either
	// (mem.IsBelowBufferPoolingThreshold).
	copyBelow = 1 << 10
)

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*dataMessage)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	m.taken = true
	var scratch [maxHeader]byte
	header := appendHeader(scratch[:0], m.id, m.chunk.Len())
	if m.chunk.Len() <= copyBelow {
		buf := make([]byte, 0, len(header)+m.chunk.Len())
		buf = append(append(buf, header...), m.chunk.Bytes()...)
		m.chunk.Release()
		return mem.BufferSlice{mem.SliceBuffer(buf)}, nil
	}
	if whole, ok := m.chunk.WithHeader(len(header)); ok {
		copy(whole, header)
		return mem.BufferSlice{lend(whole, m.chunk)}, nil
	}
	own := append(make([]byte, 0, len(header)), header...)
	return mem.BufferSlice{mem.SliceBuffer(own), lend(m.chunk.Bytes(), m.chunk)}, nil
}

// appendHeader appends a DATA packet up to its payload of size bytes. Fields
// that have their zero value are left out, as proto3 wants it.
func appendHeader(b []byte, id int64, size int) []byte {
	inner := 0
	if id != 0 {
		inner += 1 + protowire.SizeVarint(uint64(id))
	}
	if size != 0 {
		inner += 1 + protowire.SizeVarint(uint64(size)) + size
	}
	b = append(b, tagType, byte(client.PacketType_DATA), tagData)
	b = binary.AppendUvarint(b, uint64(inner))
	if id != 0 {
		b = binary.AppendUvarint(append(b, tagConn), uint64(id))
	}
	if size != 0 {
		b = binary.AppendUvarint(append(b, tagPayload), uint64(size))
	}
	return b
}

// loan is a chunk in the hands of gRPC, which gives it back by "returning it to
// its pool".
type loan struct {
	data  []byte
	chunk tunnel.Chunk
}

// loans hold idle loans; they are a cache of memory and no state.
var loans sync.Pool

func lend(data []byte, chunk tunnel.Chunk) mem.Buffer {
	l, ok := loans.Get().(*loan)
	if !ok {
		l = &loan{}
	}
	l.data, l.chunk = data, chunk
	return mem.NewBuffer(&l.data, l)
}

// Get implements mem.BufferPool; nothing is ever taken from a loan.
func (l *loan) Get(size int) *[]byte { return mem.DefaultBufferPool().Get(size) }

// Put implements mem.BufferPool.
func (l *loan) Put(*[]byte) {
	chunk := l.chunk
	l.data, l.chunk = nil, tunnel.Chunk{}
	loans.Put(l)
	chunk.Release()
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	p, ok := v.(*packet)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	p.size = data.Len()
	if p.parseData(data) {
		return nil
	}
	return p.parseAny(data)
}
