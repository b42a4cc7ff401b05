package uplink

import (
	"syscall"
	"time"

	"konnectivity/tunnel"
)

const (
	// endSize is more than TLS's word for the end of a direction takes.
	endSize = 64

	// sendLook is the interval at which Close looks for bytes that are yet to be sent.
	sendLook = 5 * time.Millisecond
)

// sendTime bounds how long Close waits for them. Tests lengthen it.
var sendTime = time.Second

// Close implements net.Conn. A kernel resets a connection that is closed with unread bytes, or to
// which bytes come later, and drops what it has yet to send. TLS's word for the end of the other
// direction is such bytes. So, on Linux, Close waits until all written bytes are in the peer's kernel.
func (h handshaken) Close() error {
	if socket, ok := tunnel.Under[syscall.Conn](h); ok {
		if raw, err := tunnel.RawConn(socket); err == nil {
			awaitSent(raw)
			_ = raw.Control(func(fd uintptr) { _, _ = tunnel.RawRead(fd, make([]byte, endSize)) }) // waits for no other reader
		}
	}
	return h.Conn.Close()
}

// awaitSent returns once the peer's kernel lacks nothing, or sendTime has passed.
func awaitSent(raw syscall.RawConn) {
	for until := time.Now().Add(sendTime); time.Now().Before(until); time.Sleep(sendLook) {
		lacks := false
		if err := raw.Control(func(fd uintptr) { lacks = unsent(fd) }); err != nil || !lacks {
			return
		}
	}
}
