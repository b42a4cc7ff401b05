package socks5

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"konnectivity/tunnel"
)

// errLeft is why a dial is given up whose client has gone.
var errLeft = fmt.Errorf("the client left before the answer: %w", context.Canceled)

// watch notices a client that leaves while its destination is dialed.
type watch struct {
	conn tunnel.Conn
	done chan struct{}
	gone error // owned by the goroutine until done is closed
}

// watchClient reads ahead into br until stop is called, and cancels when the
// client is gone. What it reads stays in br; once that is full it looks no
// further.
func watchClient(conn tunnel.Conn, br *bufio.Reader, cancel context.CancelCauseFunc) *watch {
	w := &watch{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if w.gone = readAheadUntilEnd(br); w.gone != nil {
			cancel(w.gone)
		}
	}()
	return w
}

// stop ends the watch and says why the client is gone, or nil. Nothing can be
// read after it until a new deadline is set.
func (w *watch) stop() error {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0)) // long ago: wakes the reader
	<-w.done
	return w.gone
}

// readAheadUntilEnd returns errLeft when the client is gone, and nil when it
// was interrupted or knows no more. TCP cannot tell a client that left from one
// that will send nothing more but wants to hear the answer. One that ends
// having sent nothing is taken for gone: a client waits for the reply before it
// ends its side. One that ended after it sent its data ahead is left alone.
func readAheadUntilEnd(br *bufio.Reader) error {
	for br.Buffered() < br.Size() {
		_, err := br.Peek(br.Buffered() + 1)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, io.EOF) && br.Buffered() > 0:
			return nil
		default:
			return errLeft
		}
	}
	return nil
}
