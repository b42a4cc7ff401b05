package admission

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

// ErrLeft is the reason for giving up a dial whose client has left.
var ErrLeft = fmt.Errorf("the client left before the answer: %w", context.Canceled)

// AheadSize is how much a client may send while its destination is dialed before it has to wait:
// a TLS ClientHello, or the header of a request. It fits the smallest block of memory that is
// kept for reuse.
const AheadSize = 2<<10 - tunnel.Headroom

// Lookahead reads what a client sends before it is answered, and keeps it. It takes no memory
// before it reads. It is for one goroutine at a time.
type Lookahead struct {
	conn tunnel.Conn
	kept tunnel.Chunk // a pooled block
	n    int          // bytes of it that are kept
}

// NewLookahead keeps up to AheadSize bytes of conn. It begins with a copy of the bytes that were
// already read, which may be more.
func NewLookahead(conn tunnel.Conn, read []byte) *Lookahead {
	l := &Lookahead{conn: conn}
	if len(read) > 0 {
		l.kept = tunnel.NewChunk(max(AheadSize, len(read)))
		l.n = copy(l.kept.Bytes(), read)
	}
	return l
}

// fill waits for more bytes and returns how many are kept in all; bufio.ErrBufferFull means that
// there is no room for more.
func (l *Lookahead) fill() (held int, err error) {
	if l.kept.Len() == 0 {
		l.kept = tunnel.NewChunk(AheadSize)
	}
	if l.n == l.kept.Len() {
		return l.n, bufio.ErrBufferFull
	}
	n, err := l.conn.Read(l.kept.Bytes()[l.n:])
	l.n += n
	return l.n, err
}

// Rest returns the connection with the kept bytes put back in front, and frees the
// memory. Drop only frees it.
func (l *Lookahead) Rest() tunnel.Conn {
	defer l.Drop()
	return tunnel.Unread(l.conn, l.kept.Bytes()[:l.n])
}

// Drop frees the memory.
func (l *Lookahead) Drop() {
	l.kept.Release()
	l.kept, l.n = tunnel.Chunk{}, 0
}

// watchAfter is how long a dial goes unwatched. Most dials are answered sooner,
// and are spared a goroutine and a read that is only begun to be interrupted. A
// client that leaves in that time is noticed at its end, or by the relay.
const watchAfter = 10 * time.Millisecond

// Watch notices a client that leaves while its destination is dialed.
type Watch struct {
	ahead  *Lookahead
	cancel context.CancelCauseFunc
	timer  *time.Timer
	done   chan struct{}
	gone   error // owned by look until done is closed
}

// NewWatch reads ahead, from watchAfter on until Stop is called, and cancels
// when the client is gone. Once ahead is full it stops looking.
func NewWatch(ahead *Lookahead, cancel context.CancelCauseFunc) *Watch {
	w := &Watch{ahead: ahead, cancel: cancel, done: make(chan struct{})}
	w.timer = time.AfterFunc(watchAfter, w.look)
	return w
}

func (w *Watch) look() {
	defer close(w.done)
	if w.gone = w.ahead.watch(); w.gone != nil {
		w.cancel(w.gone)
	}
}

// Stop ends the watch and returns ErrLeft if the client is gone. The connection
// has no read deadline then, and is the caller's to read. A second call is
// harmless as long as no other deadline was set.
func (w *Watch) Stop() error {
	if w.timer.Stop() {
		close(w.done) // for a second Stop
	}
	select {
	case <-w.done: // nothing reads
		return w.gone
	default:
	}
	// A deadline in the past ends a pending read and leaves TCP and TLS intact;
	// net/http ends its background reads in the same way.
	_ = w.ahead.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	_ = w.ahead.conn.SetReadDeadline(time.Time{})
	return w.gone
}

// watch returns ErrLeft when the client is gone, and nil when it was interrupted
// or can learn no more. TCP cannot tell a client that left from one that will
// send nothing more but wants to hear the answer. A client that ends its side
// without having sent anything is considered gone: others wait for the answer
// first. A client that ended its side after sending data ahead is left alone.
func (l *Lookahead) watch() error {
	for {
		held, err := l.fill()
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
