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
