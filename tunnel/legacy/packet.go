package legacy

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// packet is a received Packet. The payload of DATA is held by reference and
// belongs to its receiver; everything else is as in konnectivity-client.
type packet struct {
	kind client.PacketType
	id   int64          // the connection of DATA
	data []tunnel.Chunk // the payload of DATA; the slice is used again
	rest *client.Packet // any other packet
	size int            // of the message
}

// dataMessage is a DATA packet to send.
type dataMessage struct {
	id    int64
	chunk tunnel.Chunk
	size  int  // of the chunk, which may be released before this is asked
	taken bool // the codec has released the chunk or will
}

func dialRequest(random int64, network, address string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_DIAL_REQ,
		Payload: &client.Packet_DialRequest{DialRequest: &client.DialRequest{
			Protocol: network, Address: address, Random: random,
		}},
	}
}

func dialResponse(random, id int64, text string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_DIAL_RSP,
		Payload: &client.Packet_DialResponse{DialResponse: &client.DialResponse{
			Random: random, ConnectID: id, Error: text,
		}},
	}
}

func dialClose(random int64) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DIAL_CLS,
		Payload: &client.Packet_CloseDial{CloseDial: &client.CloseDial{Random: random}},
	}
}

// question is what a client that has taken the answer to its dial, for the connection id, and
// goes on reading, answers by CLOSE_REQ: DATA of a connection that it has never known.
func question(id int64) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DATA,
		Payload: &client.Packet_Data{Data: &client.Data{ConnectID: -id}},
	}
}

func closeRequest(id int64) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_CLOSE_REQ,
		Payload: &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: id}},
	}
}

func closeResponse(id int64, text string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_CLOSE_RSP,
		Payload: &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{
			ConnectID: id, Error: text,
		}},
	}
}

func drain() *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DRAIN,
		Payload: &client.Packet_Drain{Drain: &client.Drain{}},
	}
}

// parseData decodes a DATA packet as protobuf's encoders write it: type and data, in
// data the connection's id, unless that is 0, and the payload, unless it is empty. It
// returns false for everything else, and has then touched nothing; parseAny is for that.
func (p *packet) parseData(bufs mem.BufferSlice) bool {
	var scratch [maxHeader]byte
	head, left := scratch[:peek(bufs, scratch[:])], bufs.Len()
	number := func(tag byte) uint64 { // 0 where it is not next
		if len(head) == 0 || head[0] != tag {
			return 0
		}
		v, n := protowire.ConsumeVarint(head[1:])
		if n < 0 {
			return 0
		}
		head, left = head[1+n:], left-1-n
		return v
	}
	if number(tagType) != uint64(client.PacketType_DATA) {
		return false
	}
	if size := number(tagData); size != uint64(left) {
		return false
	}
	id := number(tagConn)
	if size := number(tagPayload); size != uint64(left) {
		return false
	}
	p.kind, p.id = client.PacketType_DATA, int64(id)
	p.data = takePayload(p.data, bufs, bufs.Len()-left)
	return true
}

// peek copies the first bytes of a message to p, and returns how many.
func peek(bufs mem.BufferSlice, p []byte) (n int) {
	for _, buf := range bufs {
		n += copy(p[n:], buf.ReadOnlyData())
	}
	return n
}

// takePayload appends all but the first skip bytes as chunks: copied up to copyBelow
// bytes, else by reference to gRPC's buffers.
func takePayload(dst []tunnel.Chunk, bufs mem.BufferSlice, skip int) []tunnel.Chunk {
	size := bufs.Len() - skip
	if size == 0 {
		return dst
	}
	small, n := tunnel.Chunk{}, 0
	if size <= copyBelow {
		small = tunnel.NewChunk(size)
		dst = append(dst, small)
	}
	for _, buf := range bufs {
		from := min(skip, buf.Len())
		skip -= from
		switch {
		case size <= copyBelow:
			n += copy(small.Bytes()[n:], buf.ReadOnlyData()[from:])
		case from < buf.Len():
			part := buf.Slice(from, buf.Len())
			dst = appendBorrowed(dst, tunnel.BorrowChunk(part.ReadOnlyData(), part))
		}
	}
	return dst
}

// appendBorrowed cuts a chunk to the size that other chunks have, should gRPC ever
// hand out larger buffers.
func appendBorrowed(dst []tunnel.Chunk, whole tunnel.Chunk) []tunnel.Chunk {
	if whole.Len() <= tunnel.ChunkSize {
		return append(dst, whole)
	}
	for from := 0; from < whole.Len(); from += tunnel.ChunkSize {
		dst = append(dst, whole.Share(from, min(from+tunnel.ChunkSize, whole.Len()), 0))
	}
	whole.Release()
	return dst
}

// parseAny decodes what parseData does not: other packets, and unusual DATA. protobuf's
// own decoder has the last word on messages.
func (p *packet) parseAny(data mem.BufferSlice) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	m := &client.Packet{}
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return err
	}
	p.kind = m.Type
	if p.kind != client.PacketType_DATA {
		p.rest = m
		return nil
	}
	p.id = m.GetData().GetConnectID()
	for payload := m.GetData().GetData(); len(payload) > 0; {
		n := min(len(payload), tunnel.ChunkSize)
		p.data = append(p.data, tunnel.CopyChunk(payload[:n]))
		payload = payload[n:]
	}
	return nil
}
