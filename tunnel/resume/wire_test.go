package resume_test

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// wireRoom is what a direction of a wire holds before who writes has to wait: what
// the buffers of a TCP connection do.
const wireRoom = 256 << 10

// wire is a connection in memory that can be cut and held up, under fake time too.
type wire struct {
	mu   sync.Mutex
	cond sync.Cond
	way  [2]way
	dead bool
	torn bool // what is under way still comes, and then nothing
}

// way is one direction.
type way struct {
	buf  []byte
	held bool // what is written does not arrive
	fin  bool // nothing more will be written
	shut bool // nobody reads any more
	left int  // bytes until the wire tears behind them; negative: it does not
}

// wireEnd is one end; it reads the way of its number, and writes the other.
type wireEnd struct {
	*wire
	who         int
	read, write time.Time
}

func newWire() (a, b *wireEnd) {
	w := &wire{way: [2]way{{left: -1}, {left: -1}}}
	w.cond.L = &w.mu
	return &wireEnd{wire: w, who: 0}, &wireEnd{wire: w, who: 1}
}

// wires is newWire for a world.
func wires() (a, b net.Conn) { return newWire() }

// hold stops, or lets go, what comes to the end with that number.
func (w *wire) hold(who int, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.way[who].held = held
	w.cond.Broadcast()
}

// tear ends it behind so many bytes more that come to the end with that number.
func (w *wire) tear(who, behind int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.way[who].left = behind
}

// tore reports whether it is torn.
func (w *wire) tore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.torn
}

// cut ends it; what is under way is lost.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	w.cond.Broadcast()
}

func (e *wireEnd) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for in := &e.way[e.who]; ; e.cond.Wait() {
		switch {
		case e.dead:
			return 0, io.ErrUnexpectedEOF
		case in.shut:
			return 0, net.ErrClosed
		case past(e.read):
			return 0, os.ErrDeadlineExceeded
		case in.held:
		case len(in.buf) > 0:
			n := copy(p, in.buf)
			in.buf = in.buf[n:]
			e.cond.Broadcast()
			return n, nil
		case in.fin:
			return 0, io.EOF
		case e.torn:
			return 0, io.ErrUnexpectedEOF
		}
	}
}

func (e *wireEnd) Write(p []byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for out := &e.way[1-e.who]; ; e.cond.Wait() {
		switch {
		case e.dead || e.torn || out.shut && !out.held:
			return n, io.ErrClosedPipe
		case out.fin:
			return n, net.ErrClosed
		case past(e.write):
			return n, os.ErrDeadlineExceeded
		case len(out.buf) < wireRoom:
			m := min(len(p)-n, wireRoom-len(out.buf))
			if out.left >= 0 {
				m = min(m, out.left)
				out.left -= m
				e.torn = out.left == 0
			}
			out.buf = append(out.buf, p[n:n+m]...)
			e.cond.Broadcast()
			if n += m; n == len(p) {
				return n, nil
			}
		}
	}
}

// try writes what there is room for.
func (e *wireEnd) try(p []byte) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := &e.way[1-e.who]
	if e.dead || e.torn || out.shut || out.fin {
		return 0
	}
	n := min(len(p), wireRoom-len(out.buf))
	out.buf = append(out.buf, p[:n]...)
	e.cond.Broadcast()
	return n
}

func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// CloseWrite ends the way out, after what was written.
func (e *wireEnd) CloseWrite() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way[1-e.who].fin = true
	e.cond.Broadcast()
	return nil
}

func (e *wireEnd) Close() error {
	_ = e.CloseWrite()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.way[e.who].shut = true
	e.cond.Broadcast()
	return nil
}

// Reset implements what tunnel.Wrap looks for.
func (e *wireEnd) Reset(error) error {
	e.cut()
	return nil
}

func (e *wireEnd) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1 + e.who}
}

func (e *wireEnd) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2 - e.who}
}

func (e *wireEnd) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *wireEnd) SetReadDeadline(t time.Time) error { return e.limit(&e.read, t) }

func (e *wireEnd) SetWriteDeadline(t time.Time) error { return e.limit(&e.write, t) }

func (e *wireEnd) limit(at *time.Time, t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	*at = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.cond.Broadcast()
		})
	}
	e.cond.Broadcast()
	return nil
}
