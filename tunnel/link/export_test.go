package link

import (
	"bytes"
	"crypto/tls"
)

// Stuck says that a Write of st is under way and the link is being written to,
// which, over a socket that takes nothing, neither will end.
func (st *Stream) Stuck() bool {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	return st.send.writing && st.ses.sender.writer.writing()
}

// Orphans is how many streams are closed and have frames to send.
func (ses *Session) Orphans() int {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.sender.queue.orphans
}

// TLSBuffers are the bytes that TLS keeps to read into.
func TLSBuffers(conn *tls.Conn) []int {
	return []int{private[bytes.Buffer](conn, "rawInput").Cap(), private[bytes.Buffer](conn, "hand").Cap()}
}

// Rested are the bytes of records that TLS still refers to once its link has rested until
// something came.
func Rested(conn *tls.Conn) int64 {
	r := prepareRest(conn)
	r.wait()
	return r.input.Size()
}

// TakesNoTickets reports whether TLS drops tickets that come now.
func TakesNoTickets(conn *tls.Conn) bool {
	return (*private[*tls.Config](conn, "config")).SessionTicketsDisabled
}
