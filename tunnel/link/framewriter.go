package link

import (
	"net"
	"sync/atomic"

	"konnectivity/tunnel"
)

// frameWriter owns the sending side of a connection. Whoever has the turn (see
// sendQueue) calls it; it alone does, also while Session.mu is released.
type frameWriter struct {
	conn    net.Conn
	cork    *cork // nil: none
	socket  socket
	scratch []byte // what small frames are put together in

	writes atomic.Uint64 // that the connection has taken; for all to read
}

func newFrameWriter(conn net.Conn) frameWriter {
	cork, _ := tunnel.Under[*cork](conn)
	return frameWriter{conn: conn, cork: cork, socket: newSocket(conn)}
}

// gather returns the scratch buffer, to append frames to; keep follows.
func (w *frameWriter) gather() []byte { return w.scratch[:0] }

// keep takes the buffer back, which may have grown. What was gathered in it is
// good until the next frame is written.
func (w *frameWriter) keep(b []byte) []byte {
	w.scratch = b[:0]
	return b
}

// send writes frames and has the kernel take them.
func (w *frameWriter) send(frames []byte) error {
	if err := w.write(frames); err != nil {
		return err
	}
	return w.uncork()
}

func (w *frameWriter) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := w.conn.Write(b)
	w.writes.Add(1)
	return err
}

// uncork has the kernel take all that was written.
func (w *frameWriter) uncork() error {
	if w.cork == nil {
		return nil
	}
	return w.cork.flush()
}

// writeTurn writes what goes first, and total bytes of src as DATA frames of a
// stream. It narrows src by them, and returns how many frames they were.
func (w *frameWriter) writeTurn(first []byte, id uint64, src []tunnel.Chunk, total int) (frames int, err error) {
	w.socket.beforeTurn(total)
	if err := w.write(first); err != nil {
		return 0, err
	}
	for i := 0; total > 0; {
		c := src[i]
		n := min(c.Len(), maxPayload, total)
		if n == 0 {
			i++
			continue
		}
		if err := w.writeData(id, c.Slice(0, n)); err != nil {
			return frames, err
		}
		frames++
		src[i] = c.Slice(n, c.Len())
		total -= n
	}
	return frames, nil
}

// writeData writes c as one frame. Its header goes right before the payload:
// into the chunk's own headroom, or over bytes that were sent already,
// which are put back.
func (w *frameWriter) writeData(id uint64, c tunnel.Chunk) error {
	h := header{typ: frameData, length: c.Len(), stream: id}
	if frame, ok := c.WithHeader(headerSize); ok {
		was := [headerSize]byte(frame)
		h.put(frame)
		err := w.write(frame)
		copy(frame, was[:]) // whoever keeps the bytes may have to send them again
		return err
	}
	return w.write(w.keep(appendFrame(w.gather(), frameData, 0, id, c.Bytes())))
}

// takesNow says whether a write would not have to wait for the kernel. left is
// set where a try to make it so has not emptied the cork.
func (w *frameWriter) takesNow() (takes, left bool) {
	if w.cork == nil || w.cork.raw == nil {
		return false, false
	}
	if w.cork.hasRoom() {
		return true, false
	}
	left = w.cork.tryFlush()
	return w.cork.hasRoom(), left
}

// tryFlush has the kernel take what it takes at once, and says whether that
// leaves anything. It needs no turn.
func (w *frameWriter) tryFlush() (left bool) { return w.cork != nil && w.cork.tryFlush() }

// close closes the connection, which unblocks whoever reads or writes.
func (w *frameWriter) close() {
	if w.cork != nil {
		w.cork.release()
	}
	_ = w.conn.Close()
}
