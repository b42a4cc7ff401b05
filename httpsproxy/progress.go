package httpsproxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// progress is made by one side of a connection while the other one waits for as
// long as there is any.
type progress struct {
	count   atomic.Int64
	once    sync.Once
	stopped chan struct{} // closed by stop
}

func newProgress() *progress { return &progress{stopped: make(chan struct{})} }

func (p *progress) stop() { p.once.Do(func() { close(p.stopped) }) }

// stall returns false once there was no progress for bound or cut is closed, and
// true as soon as stop is called.
func (p *progress) stall(cut <-chan struct{}, bound time.Duration) (stopped bool) {
	for seen := p.count.Load(); ; {
		select {
		case <-p.stopped:
			return true
		case <-cut:
			return false
		case <-time.After(bound):
		}
		now := p.count.Load()
		if now == seen {
			return false
		}
		seen = now
	}
}
