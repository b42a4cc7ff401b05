package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"konnectivity/tunnel"
)

// ALPN is the protocol id of version 1 (docs/link-protocol.md §1).
const ALPN = "konnectivity-link/1"

const (
	headerSize = tunnel.Headroom                // §2
	maxPayload = tunnel.RecordSize - headerSize // a frame is at most one TLS record
	maxCredit  = uint64(1) << 62                // beyond it a limit is nonsense (§7)
)

// frameType is the first byte of a frame.
type frameType uint8

const (
	frameHello frameType = iota
	frameOpen
	frameOpened
	frameData
	frameCredit
	frameReset
	framePing
	frameGoAway
	frameInfo
	frameAck
	frameMove
)

// Flags, each named after its frame.
const (
	flagDataFin  = 1
	flagPingAck  = 1
	flagAckEnd   = 1 // the end of the direction was taken, too
	flagAckBig   = 2 // the sender of the ACK can keep much
	flagMoveStay = 1 // the connection cannot be moved
)

// header is the fixed part of a frame.
type header struct {
	typ    frameType
	flags  uint8
	length int
	stream uint64
}

// errFrameTooLong is the error of a header that announces more than a frame may
// hold.
var errFrameTooLong = errors.New("frame longer than 16372 bytes")

// put writes h into the first headerSize bytes of b.
func (h header) put(b []byte) {
	b[0] = byte(h.typ)
	b[1] = h.flags
	binary.BigEndian.PutUint16(b[2:], uint16(h.length))
	binary.BigEndian.PutUint64(b[4:], h.stream)
}

// parseHeader reads a header from the first headerSize bytes of b.
func parseHeader(b []byte) (header, error) {
	h := header{
		typ:    frameType(b[0]),
		flags:  b[1],
		length: int(binary.BigEndian.Uint16(b[2:])),
		stream: binary.BigEndian.Uint64(b[4:]),
	}
	if h.length > maxPayload {
		return h, errFrameTooLong
	}
	return h, nil
}

// appendFrame appends a whole frame with a payload of at most maxPayload.
func appendFrame(b []byte, typ frameType, flags uint8, stream uint64, payload []byte) []byte {
	var h [headerSize]byte
	header{typ, flags, len(payload), stream}.put(h[:])
	return append(append(b, h[:]...), payload...)
}

func appendCredit(b []byte, stream, limit uint64) []byte {
	return appendFrame(b, frameCredit, 0, stream, binary.BigEndian.AppendUint64(nil, limit))
}

func appendAck(b []byte, stream uint64, a Ack) []byte {
	var flags uint8
	if a.End {
		flags |= flagAckEnd
	}
	if a.Big {
		flags |= flagAckBig
	}
	return appendFrame(b, frameAck, flags, stream, binary.BigEndian.AppendUint64(nil, a.Offset))
}

func appendReset(b []byte, stream uint64, code tunnel.Code) []byte {
	return appendFrame(b, frameReset, 0, stream, binary.BigEndian.AppendUint16(nil, uint16(code)))
}

func appendPing(b []byte, flags uint8, opaque uint64) []byte {
	return appendFrame(b, framePing, flags, 0, binary.BigEndian.AppendUint64(nil, opaque))
}

func appendGoAway(b []byte, code GoAwayCode, text string) []byte {
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	return appendFrame(b, frameGoAway, 0, 0, append(payload, cut(text)...))
}

// GoAwayCode says why a link ends (§6).
type GoAwayCode uint16

// The reasons of GOAWAY.
const (
	GoAwayDrain     GoAwayCode = 0 // open new streams elsewhere; this link goes on
	GoAwayProtocol  GoAwayCode = 1
	GoAwayRefused   GoAwayCode = 2
	GoAwayDuplicate GoAwayCode = 3
	GoAwayShutdown  GoAwayCode = 4
	GoAwayInternal  GoAwayCode = 5
)

// goAwayWords are the reasons in words, by their codes.
var goAwayWords = [...]string{"drain", "protocol violation", "refused", "duplicate link", "shutting down", "internal error"}

func (c GoAwayCode) String() string {
	if int(c) < len(goAwayWords) {
		return goAwayWords[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// maxText bounds what a peer may make us keep or log of its prose (§14).
const maxText = 1024

// cut returns the beginning of a text. What a peer has sent is bytes: nothing keeps the rest
// of them in memory.
func cut[T string | []byte](text T) string { return string(text[:min(len(text), maxText)]) }
