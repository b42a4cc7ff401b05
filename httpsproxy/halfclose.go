package httpsproxy

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// halfCloseTime is how long a client that has ended its side may be sent
// nothing before it is taken for gone. TCP does not tell one that left from one
// that has asked all it wants and listens (nc -N, busybox nc): the first must
// not keep a watch open for long, the second not lose its response.
const halfCloseTime = 3 * time.Second

// patience holds the end of a client's side back from net/http, which would
// cancel the request at once.
type patience struct {
	once    sync.Once
	stopped chan struct{} // closed when net/http wants to hear no more
	sent    atomic.Int64  // counts what was sent of the response
}

func newPatience() *patience { return &patience{stopped: make(chan struct{})} }

func (p *patience) stop() { p.once.Do(func() { close(p.stopped) }) }

// wait returns what the reader is to be told: io.EOF if the client is taken for
// gone, or that it was stopped before.
func (p *patience) wait(cut <-chan struct{}, bound time.Duration) error {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for seen := p.sent.Load(); ; {
		select {
		case <-p.stopped:
			return os.ErrDeadlineExceeded // net/http stops a read by its deadline
		case <-cut:
			return io.EOF
		case <-timer.C:
		}
		now := p.sent.Load()
		if now == seen {
			return io.EOF
		}
		seen = now // what is sent to one that has left fails soon
		timer.Reset(bound)
	}
}

// Read is net/http's. It reads a single byte where it has all of a request and
// only listens for the client's leaving.
func (c *client) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	if n > 0 && !c.heard {
		if c.heard = true; !beginsHTTP(b[0]) {
			c.turnAway()
			return 0, io.EOF
		}
	}
	if err == io.EOF && len(b) == 1 && c.patience != nil {
		err = c.patience.wait(c.ctx.Done(), c.halfClose)
	}
	return n, err
}

// SetReadDeadline is net/http's. One long ago stops a Read.
func (c *client) SetReadDeadline(t time.Time) error {
	if c.deaf.Load() {
		t = longAgo
	}
	if c.patience != nil && !t.IsZero() && t.Before(time.Now()) {
		c.patience.stop()
	}
	return c.conn.SetReadDeadline(t)
}

// stopReading ends reads, now and later, of who would discard the rest of a
// request's content first. net/http does, after a response that came early, and
// sets deadlines of its own for as long as the client pleases.
func (c *client) stopReading() {
	c.deaf.Store(true)
	_ = c.conn.SetReadDeadline(longAgo)
}
