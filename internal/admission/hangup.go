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
