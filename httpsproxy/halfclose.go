package httpsproxy

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// halfCloseTime is how long after a client has ended its side, with nothing
// sent to it, the client is considered gone. TCP does not distinguish a client
// that left from one that has sent everything and listens (nc -N, busybox nc):
// the first must not keep a watch open for long, and the second must not lose
// its response.
const halfCloseTime = 3 * time.Second

// patience withholds the end of a client's side from net/http, which would
// cancel the request at once.
type patience struct {
	once    sync.Once
	stopped chan struct{} // closed when net/http stops reading
	sent    atomic.Int64  // counts what was sent of the response
}

func newPatience() *patience { return &patience{stopped: make(chan struct{})} }

func (p *patience) stop() { p.once.Do(func() { close(p.stopped) }) }

// wait returns the error for the reader: io.EOF if the client is considered
// gone, or that the read was stopped before.
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
		seen = now // sending to a client that has left soon fails
		timer.Reset(bound)
	}
}

// Read is for net/http, which reads a single byte when it has a whole request
// and only waits for the client to leave.
func (c *client) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	if n > 0 && !c.heard {
		if c.heard = true; !beginsHTTP(b[0]) {
			c.turnAway()
			return 0, io.EOF
		}
	}
	if n > 0 && !c.asked {
		c.weigh(b[:n])
	}
	if err == io.EOF && len(b) == 1 && c.patience != nil {
		err = c.patience.wait(c.ctx.Done(), c.halfClose)
	}
	return n, err
}

// SetReadDeadline is for net/http. A deadline long ago stops a Read.
func (c *client) SetReadDeadline(t time.Time) error {
	if c.deaf.Load() {
		t = longAgo
	}
	if c.patience != nil && !t.IsZero() && t.Before(time.Now()) {
		c.patience.stop()
	}
	return c.conn.SetReadDeadline(t)
}

// stopReading ends reads, now and later. After an early response net/http would
// first discard the rest of the request's content, for as long as the client
// pleases.
func (c *client) stopReading() {
	c.deaf.Store(true)
	_ = c.conn.SetReadDeadline(longAgo)
}
