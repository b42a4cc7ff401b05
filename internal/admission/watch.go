package admission

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// ErrLeft is why a dial is given up whose client has gone.
var ErrLeft = fmt.Errorf("the client left before the answer: %w", context.Canceled)

// Ahead reads what a client sends before it is answered, and keeps it.
type Ahead interface {
	// Fill waits for more bytes. held is how many are kept in all;
	// bufio.ErrBufferFull means that no more can be.
	Fill() (held int, err error)
}

// Buffer is an Ahead that keeps bytes in a reader's own buffer.
type Buffer struct{ *bufio.Reader }

// Fill implements Ahead.
func (b Buffer) Fill() (held int, err error) {
	_, err = b.Peek(b.Buffered() + 1)
	return b.Buffered(), err
}

// Deadliner is the part of a connection that wakes its reader.
type Deadliner interface{ SetReadDeadline(time.Time) error }

// watchAfter is how long a dial goes unwatched. Most are answered sooner, and
// are spared a goroutine and a read that is begun only to be interrupted; a
// client that leaves meanwhile is noticed by then, or by the relay.
const watchAfter = 10 * time.Millisecond

// Watch notices a client that leaves while its destination is dialed.
type Watch struct {
	conn   Deadliner
	ahead  Ahead
	cancel context.CancelCauseFunc
	timer  *time.Timer
	done   chan struct{}
	gone   error // owned by look until done is closed
}

// NewWatch reads ahead, from watchAfter on until Stop is called, and cancels
// when the client is gone. Once ahead is full it looks no further. conn is what
// ahead reads from.
func NewWatch(conn Deadliner, ahead Ahead, cancel context.CancelCauseFunc) *Watch {
	w := &Watch{conn: conn, ahead: ahead, cancel: cancel, done: make(chan struct{})}
	w.timer = time.AfterFunc(watchAfter, w.look)
	return w
}

func (w *Watch) look() {
	defer close(w.done)
	if w.gone = fill(w.ahead); w.gone != nil {
		w.cancel(w.gone)
	}
}

// Stop ends the watch and returns ErrLeft if the client is gone. The connection
// has no read deadline then, and is the caller's to read. Again is harmless for
// as long as nobody else has set a deadline.
func (w *Watch) Stop() error {
	if w.timer.Stop() {
		close(w.done) // for a Stop that comes again
	}
	select {
	case <-w.done: // nothing reads
		return w.gone
	default:
	}
	// A deadline in the past ends a pending read and leaves TCP and TLS whole;
	// net/http ends its background reads so.
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	_ = w.conn.SetReadDeadline(time.Time{})
	return w.gone
}

// fill returns ErrLeft when the client is gone, and nil when it was interrupted
// or knows no more. TCP cannot tell a client that left from one that will send
// nothing more but wants to hear the answer. One that ends having sent nothing
// is taken for gone: a client waits for the answer before it ends its side. One
// that ended after it sent its data ahead is left alone.
func fill(ahead Ahead) error {
	for {
		held, err := ahead.Fill()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, bufio.ErrBufferFull):
			return nil
		case errors.Is(err, io.EOF) && held > 0:
			return nil
		default:
			return ErrLeft
		}
	}
}
