package link

import (
	"net"
	"sync/atomic"

	"konnectivity/tunnel"
)

// frameWriter writes frames to a connection. Only the writer calls it (see
// writerState), without Session.mu.
type frameWriter struct {
	conn    net.Conn
	buffer  *writeBuffer // nil: none
	socket  socket
	scratch []byte // what small frames are put together in

	writes atomic.Uint64 // writes that the connection has taken; any goroutine may read it
	pace   atomic.Uint64 // bytes per second that it may send, 0: any; any goroutine may set it
}

func newFrameWriter(conn net.Conn) frameWriter {
	buffer, _ := tunnel.Under[*writeBuffer](conn)
	return frameWriter{conn: conn, buffer: buffer, socket: newSocket(conn)}
}

// scratchBuffer returns a buffer to append frames to; keepScratch must follow.
func (w *frameWriter) scratchBuffer() []byte { return w.scratch[:0] }

// keepScratch takes the buffer back, which may have grown. Its frames are valid until
// the next frame is written.
func (w *frameWriter) keepScratch(b []byte) []byte {
	w.scratch = b[:0]
	return b
}

// send writes frames and passes them to the kernel.
func (w *frameWriter) send(frames []byte) error {
	if err := w.write(frames); err != nil {
		return err
	}
	return w.flushBuffer()
}

func (w *frameWriter) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := w.conn.Write(b)
	w.writes.Add(1)
	return err
}

// flushBuffer passes all that was written to the kernel.
func (w *frameWriter) flushBuffer() error {
	if w.buffer == nil {
		return nil
	}
	return w.buffer.flush()
}

// writeTurn writes the frames in first, and then total bytes of src as DATA of a
// stream. It narrows src by these, and returns how many frames they made.
func (w *frameWriter) writeTurn(first []byte, id uint64, src []tunnel.Chunk, total int) (frames int, err error) {
	w.socket.beforeTurn(total, w.pace.Load())
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

// writeData writes c as one frame. Its header goes right before the payload: into the
// chunk's headroom, or over bytes that were sent already and are restored.
func (w *frameWriter) writeData(id uint64, c tunnel.Chunk) error {
	h := header{typ: frameData, length: c.Len(), stream: id}
	if frame, ok := c.WithHeader(headerSize); ok {
		was := [headerSize]byte(frame)
		h.put(frame)
		err := w.write(frame)
		copy(frame, was[:]) // an end that resumes may have to send them again
		return err
	}
	return w.write(w.keepScratch(appendFrame(w.scratchBuffer(), frameData, 0, id, c.Bytes())))
}

// hasRoom reports whether a write would not block. It may flush for that; unsent says
// that bytes remain in the buffer.
func (w *frameWriter) hasRoom() (room, unsent bool) {
	if w.buffer == nil || w.buffer.raw == nil {
		return false, false
	}
	if w.buffer.hasRoom() {
		return true, false
	}
	unsent = w.buffer.tryFlush()
	return w.buffer.hasRoom(), unsent
}

// tryFlush passes to the kernel what it takes at once, and reports whether bytes
// remain. It needs no turn.
func (w *frameWriter) tryFlush() (unsent bool) { return w.buffer != nil && w.buffer.tryFlush() }

// close closes the connection, which unblocks its reader and writer.
func (w *frameWriter) close() {
	if w.buffer != nil {
		w.buffer.passThrough()
	}
	_ = w.conn.Close()
}
