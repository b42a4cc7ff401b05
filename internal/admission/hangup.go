package admission

import (
	"io"
	"time"

	"konnectivity/tunnel"
)

const (
	// partingTime and partingBytes bound how long a client's bytes are read after
	// the last message to it: closing a socket with unread bytes sends a reset,
	// which can overtake the message.
	partingTime  = time.Second
	partingBytes = 256 << 10

	// uploadTime bounds the same for a client that was answered in the middle of an
	// upload. It is what nginx gives (lingering_time).
	uploadTime = 30 * time.Second

	// uploadBlock is how much of it is read at once.
	uploadBlock = 32 << 10
)

// HangUp sends the last message to a client, which may be empty, and ends the
// direction to it in a way that the client can read everything. It takes about a
// second at most, and leaves a deadline set. The caller closes conn.
func HangUp(conn tunnel.Conn, message []byte) {
	_ = conn.SetDeadline(time.Now().Add(partingTime))
	if len(message) > 0 {
		if _, err := conn.Write(message); err != nil {
			return
		}
	}
	if conn.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn, partingBytes)
	}
}

// Drain is HangUp for a client that was admitted, and has its answer in the middle of
// what it sends. Most clients read nothing before they have sent everything, so bytes are
// read for as long as they go on coming, within uploadTime.
func Drain(conn tunnel.Conn) {
	if conn.CloseWrite() != nil {
		return
	}
	block := make([]byte, uploadBlock)
	for end := time.Now().Add(uploadTime); ; {
		until := time.Now().Add(partingTime)
		if until.After(end) {
			until = end
		}
		_ = conn.SetReadDeadline(until)
		if _, err := conn.Read(block); err != nil {
			return
		}
	}
}
