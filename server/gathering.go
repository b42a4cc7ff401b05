package server

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/net/http2"

	"konnectivity/tunnel/legacy"
)

const (
	// messagePrefix is what gRPC puts before each message.
	messagePrefix = 5

	// gatherFreely is what a connection may leave incomplete once its client's memory
	// is used up: about what is on its way.
	gatherFreely = 64 << 10
)

// errGathered ends a connection whose client has used up its memory with messages
// that it does not complete.
var errGathered = errors.New("this client's share is used up, and it sends messages without completing them")

// gathering is a client's connection below gRPC. gRPC gathers a message of up to 4
// MB before it shows any of it, for each of a thousand streams, and bounds that by
// nothing else. So what comes in DATA frames counts as the client's until it has been
// handed over. One goroutine reads; any may call the rest.
type gathering struct {
	net.Conn
	budget *legacy.Budget
	frames frameWalk

	mu      sync.Mutex
	held    int
	streams int
	over    bool
}

// Read implements net.Conn.
func (g *gathering) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if came := g.frames.payload(p[:n]); came > 0 && !g.hold(came) {
		_ = g.Conn.Close()
		return 0, errGathered
	}
	return n, err
}

// hold counts n bytes more, and says whether there may be as many.
func (g *gathering) hold(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return true
	}
	g.add(n)
	return g.held <= gatherFreely || !g.budget.Full()
}

// handedOver notes a message of so many bytes.
func (g *gathering) handedOver(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(-min(n+messagePrefix, g.held))
}

// begin counts a stream. What those that end leave incomplete is forgotten with the
// last of them, or with the connection.
func (g *gathering) begin() (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streams++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.streams--; g.streams == 0 {
			g.add(-g.held)
		}
	}
}

// finish forgets all, for good.
func (g *gathering) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.add(-g.held)
}

func (g *gathering) add(n int) {
	g.held += n
	g.budget.Hold(n)
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
