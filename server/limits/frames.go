package limits

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/net/http2"

	"konnectivity/tunnel/shares"
)

const (
	// messagePrefix is what gRPC puts before each message.
	messagePrefix = 5

	// incompleteFree is what a connection may leave incomplete once its client's memory
	// is used up: about the bytes in transit.
	incompleteFree = 64 << 10
)

// errIncomplete ends a connection whose client has used up its memory with messages
// that it does not complete.
var errIncomplete = errors.New("this client's share is used up, and it sends messages without completing them")

// Frames counts the payload of DATA frames on a client's connection below gRPC as the
// client's memory, until the message is handed over. gRPC collects a message of up to
// 4 MB before it shows any of it, for each of a thousand streams, and bounds that by
// nothing else. One goroutine reads; any may call the other methods.
type Frames struct {
	net.Conn
	budget *shares.Budget
	frames frameWalk

	mu      sync.Mutex
	held    int
	streams int
	over    bool
}

// NewFrames returns a connection over c that counts in budget. Finish must follow.
func NewFrames(c net.Conn, budget *shares.Budget) *Frames { return &Frames{Conn: c, budget: budget} }

// Read implements net.Conn.
func (f *Frames) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if came := f.frames.payload(p[:n]); came > 0 && !f.hold(came) {
		_ = f.Conn.Close()
		return 0, errIncomplete
	}
	return n, err
}

// hold counts n bytes more, and says whether there may be as many.
func (f *Frames) hold(n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return true
	}
	f.add(n)
	return f.held <= incompleteFree || f.budget.Left() > 0
}

// Received counts a message of so many bytes that was handed over.
func (f *Frames) Received(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(-min(n+messagePrefix, f.held))
}

// Begin counts a stream until end. What streams leave incomplete is given back with the
// last of them, or with the connection.
func (f *Frames) Begin() (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams--; f.streams == 0 {
			f.add(-f.held)
		}
	}
}

// Finish gives all back, and counts nothing from then on.
func (f *Frames) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.add(-f.held)
}

func (f *Frames) add(n int) {
	f.held += n
	f.budget.Hold(n)
}

// frameWalk finds the payload of DATA frames in what an HTTP/2 client sends (RFC
// 9113 §3.4, §4.1).
type frameWalk struct {
	preface int // how much of it has come
	head    [9]byte
	have    int // of head
	left    int // of the frame
	data    bool
}

// payload returns how much of p is that.
func (w *frameWalk) payload(p []byte) (n int) {
	take := func(most int) int {
		m := min(most, len(p))
		p = p[m:]
		return m
	}
	w.preface += take(len(http2.ClientPreface) - w.preface)
	for len(p) > 0 {
		if w.left > 0 {
			m := take(w.left)
			w.left -= m
			if w.data {
				n += m
			}
			continue
		}
		rest := p
		m := take(len(w.head) - w.have)
		copy(w.head[w.have:], rest[:m])
		if w.have += m; w.have == len(w.head) {
			w.have = 0
			w.left = int(w.head[0])<<16 | int(w.head[1])<<8 | int(w.head[2])
			w.data = http2.FrameType(w.head[3]) == http2.FrameData
		}
	}
	return n
}
