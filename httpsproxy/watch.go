package httpsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"konnectivity/tunnel"
)

// aheadSize is how much a client may send ahead of the answer to its CONNECT
// before it is read no further: any TLS ClientHello, and what net/http has
// buffered of it.
const aheadSize = 8 << 10

// errLeft is why a dial is given up whose client has gone.
var errLeft = fmt.Errorf("the client left before the answer: %w", context.Canceled)

// watch notices a client that leaves while its destination is dialed, and keeps
// what it sends ahead.
type watch struct {
	conn  tunnel.Conn
	ahead tunnel.Chunk // a pooled block; its first n bytes were sent ahead
	n     int
	done  chan struct{} // nil before run
	gone  error         // owned by the goroutine until done is closed
}

// newWatch starts with what was read ahead already, which is copied.
func newWatch(conn tunnel.Conn, ahead []byte) *watch {
	w := &watch{conn: conn, ahead: tunnel.NewChunk(max(aheadSize, len(ahead)))}
	w.n = copy(w.ahead.Bytes(), ahead)
	return w
}

// run reads ahead until stop is called, and cancels when the client is gone.
func (w *watch) run(cancel context.CancelCauseFunc) {
	w.done = make(chan struct{})
	go func() {
		defer close(w.done)
		if w.gone = w.read(); w.gone != nil {
			cancel(w.gone)
		}
	}()
}

// read returns errLeft when the client is gone, and nil when it was interrupted
// or knows no more. TCP cannot tell a client that left from one that will send
// nothing more but wants to hear the answer. One that ends having sent nothing
// is taken for gone: a client waits for the answer before it ends its side. One
// that ended after it sent its data ahead is left alone.
func (w *watch) read() error {
	for w.n < w.ahead.Len() {
		n, err := w.conn.Read(w.ahead.Bytes()[w.n:])
		w.n += n
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, io.EOF) && w.n > 0:
			return nil
		default:
			return errLeft
		}
	}
	return nil
}

// stop ends the watch and says why the client is gone, or nil.
func (w *watch) stop() error {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0)) // long ago: wakes the reader
	<-w.done
	_ = w.conn.SetReadDeadline(time.Time{})
	if w.gone != nil {
		w.drop()
	}
	return w.gone
}

// rest is the connection with what was read ahead put back; it takes the place
// of drop.
func (w *watch) rest() tunnel.Conn {
	defer w.drop()
	return tunnel.Unread(w.conn, w.ahead.Bytes()[:w.n])
}

// drop frees the memory.
func (w *watch) drop() {
	w.ahead.Release()
	w.ahead = tunnel.Chunk{}
}
