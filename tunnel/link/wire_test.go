package link_test

import (
	"io"
	"net"
	"sync"
	"time"
)

// delayPair is an in-process wire that delivers every byte delay later. With
// stallEvery above 0, it holds everything up for four delays each time so many
// bytes have passed, as a lost and resent TCP segment does.
func delayPair(delay time.Duration, stallEvery int) (net.Conn, net.Conn) {
	ab, ba := newDelayLine(delay, stallEvery), newDelayLine(delay, stallEvery)
	return &wireEnd{in: ba, out: ab}, &wireEnd{in: ab, out: ba}
}

// wireCap is what the wire holds, several times the product of the delays
// and the speeds that are measured.
const wireCap = 64 << 20

type segment struct {
	data []byte
	due  time.Time
}

type delayLine struct {
	mu         sync.Mutex
	cond       sync.Cond
	segments   []segment
	held       int
	closed     bool
	delay      time.Duration
	stallEvery int
	passed     int
	lastDue    time.Time
}

func newDelayLine(delay time.Duration, stallEvery int) *delayLine {
	l := &delayLine{delay: delay, stallEvery: stallEvery}
	l.cond.L = &l.mu
	return l
}

func (l *delayLine) write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.held > wireCap && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return 0, net.ErrClosed
	}
	due := time.Now().Add(l.delay)
	if l.passed += len(p); l.stallEvery > 0 && l.passed >= l.stallEvery {
		l.passed = 0
		due = due.Add(4 * l.delay)
	}
	if due.Before(l.lastDue) {
		due = l.lastDue
	}
	l.lastDue = due
	l.segments = append(l.segments, segment{append([]byte(nil), p...), due})
	l.held += len(p)
	l.cond.Broadcast()
	return len(p), nil
}

func (l *delayLine) read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if len(l.segments) == 0 {
			if l.closed {
				return 0, io.EOF
			}
			l.cond.Wait()
			continue
		}
		wait := time.Until(l.segments[0].due)
		if wait <= 0 || l.closed {
			break
		}
		l.mu.Unlock()
		time.Sleep(wait)
		l.mu.Lock()
	}
	n := copy(p, l.segments[0].data)
	l.segments[0].data = l.segments[0].data[n:]
	if len(l.segments[0].data) == 0 {
		l.segments = l.segments[1:]
	}
	l.held -= n
	l.cond.Broadcast()
	return n, nil
}

func (l *delayLine) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Broadcast()
}

// wireEnd is one end of the wire; deadlines are not needed for speed.
type wireEnd struct {
	undated
	in, out *delayLine
}

func (w *wireEnd) Read(p []byte) (int, error) { return w.in.read(p) }

func (w *wireEnd) Write(p []byte) (int, error) { return w.out.write(p) }

func (w *wireEnd) Close() error { w.in.close(); w.out.close(); return nil }

// pipe is one direction of a connection in memory.
type pipe struct {
	mu     sync.Mutex
	cond   sync.Cond
	most   int    // what it holds before Write blocks
	buf    []byte // unread bytes; its capacity stays
	fin    bool
	closed error
}

func newPipe(most int) *pipe {
	p := &pipe{most: most}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) Read(into []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 {
		if p.closed != nil {
			return 0, p.closed
		}
		if p.fin {
			return 0, io.EOF
		}
		p.cond.Wait()
	}
	n := copy(into, p.buf)
	p.buf = p.buf[:copy(p.buf, p.buf[n:])]
	p.cond.Broadcast()
	return n, nil
}

func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed != nil {
			return n, p.closed
		}
		m := min(len(b)-n, p.most-len(p.buf))
		p.buf = append(p.buf, b[n:n+m]...)
		p.cond.Broadcast()
		if n += m; n == len(b) {
			return n, nil
		}
		p.cond.Wait()
	}
}

// end is the FIN.
func (p *pipe) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fin = true
	p.cond.Broadcast()
	return nil
}

func (p *pipe) close(cause error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed == nil {
		p.closed = cause
	}
	p.cond.Broadcast()
	return nil
}
