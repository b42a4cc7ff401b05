package legacy

import (
	"google.golang.org/grpc/mem"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// cursor reads a message that lies in several buffers.
type cursor struct {
	bufs mem.BufferSlice
	at   int // the buffer
	off  int // in that buffer
	left int // bytes until the end of the message
}

func (c *cursor) byte() (byte, bool) {
	for c.at < len(c.bufs) {
		if b := c.bufs[c.at].ReadOnlyData(); c.off < len(b) {
			c.off++
			c.left--
			return b[c.off-1], true
		}
		c.at++
		c.off = 0
	}
	return 0, false
}

// varint reads a base-128 number of at most 64 bits.
func (c *cursor) varint() (uint64, bool) {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		b, ok := c.byte()
		if !ok || shift == 63 && b > 1 {
			return 0, false
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, true
		}
	}
	return 0, false
}

// length reads a length that must not reach beyond end bytes from the end.
func (c *cursor) length(end int) (int, bool) {
	n, ok := c.varint()
	if !ok || c.left < end || n > uint64(c.left-end) {
		return 0, false
	}
	return int(n), true
}

// walk advances by n bytes, which must exist, and shows each piece on the way.
func (c *cursor) walk(n int, show func(buf mem.Buffer, from, to int)) {
	c.left -= n
	for n > 0 {
		buf := c.bufs[c.at]
		m := min(n, buf.Len()-c.off)
		if m > 0 {
			show(buf, c.off, c.off+m)
		}
		n -= m
		c.off += m
		if c.off == buf.Len() && n > 0 {
			c.at++
			c.off = 0
		}
	}
}

func skip(mem.Buffer, int, int) {}

// parseData decodes a DATA packet as every known encoder writes it: type and
// data once each, in data a connection id and one payload, in any order. It
// returns false for everything else, and has then touched nothing; parseAny
// is for that.
func (p *packet) parseData(bufs mem.BufferSlice) bool {
	c := cursor{bufs: bufs, left: bufs.Len()}
	var kind, id uint64
	var payload cursor
	var size int
	seen := false
	for c.left > 0 {
		tag, _ := c.byte()
		ok := false
		switch {
		case tag == tagType:
			kind, ok = c.varint()
		case tag == tagData && !seen:
			seen = true
			var n int
			if n, ok = c.length(0); ok {
				id, payload, size, ok = c.parseInner(c.left - n)
			}
		}
		if !ok {
			return false
		}
	}
	if !seen || kind != uint64(client.PacketType_DATA) {
		return false
	}
	p.kind, p.id = client.PacketType_DATA, int64(id)
	p.data = takePayload(p.data, payload, size)
	return true
}

// parseInner decodes the Data message that ends where end bytes are left, and
// returns where its payload lies.
func (c *cursor) parseInner(end int) (id uint64, payload cursor, size int, ok bool) {
	seen := false
	for c.left > end {
		tag, _ := c.byte()
		ok := false
		switch {
		case tag == tagConn:
			id, ok = c.varint()
		case tag == tagPayload && !seen:
			seen = true
			if size, ok = c.length(end); ok {
				payload = *c
				c.walk(size, skip)
			}
		}
		if !ok {
			return 0, cursor{}, 0, false
		}
	}
	return id, payload, size, c.left == end
}

// takePayload appends size bytes from at as chunks: copied where they are few,
// else by reference to gRPC's buffers.
func takePayload(dst []tunnel.Chunk, at cursor, size int) []tunnel.Chunk {
	if size == 0 {
		return dst
	}
	if size <= copyBelow {
		chunk := tunnel.NewChunk(size)
		n := 0
		at.walk(size, func(buf mem.Buffer, from, to int) {
			n += copy(chunk.Bytes()[n:], buf.ReadOnlyData()[from:to])
		})
		return append(dst, chunk)
	}
	at.walk(size, func(buf mem.Buffer, from, to int) {
		part := buf.Slice(from, to)
		dst = appendBorrowed(dst, tunnel.BorrowChunk(part.ReadOnlyData(), part))
	})
	return dst
}

// appendBorrowed keeps to the size that other chunks have, should gRPC ever
// hand out larger buffers.
func appendBorrowed(dst []tunnel.Chunk, whole tunnel.Chunk) []tunnel.Chunk {
	if whole.Len() <= tunnel.ChunkSize {
		return append(dst, whole)
	}
	for from := 0; from < whole.Len(); from += tunnel.ChunkSize {
		to := min(from+tunnel.ChunkSize, whole.Len())
		dst = append(dst, whole.Share(from, to, 0))
	}
	whole.Release()
	return dst
}
