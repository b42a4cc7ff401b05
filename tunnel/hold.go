package tunnel

import (
	"sync/atomic"
	"time"
)

// Hold keeps those who carry bytes from reading more, for a moment at a time. The
// zero Hold, and nil, keep nobody. Any goroutine may use it at any time.
type Hold struct {
	until atomic.Int64 // nanoseconds since holdEpoch; 0: it is over
}

// holdEpoch is what the monotonic clock is compared with.
var holdEpoch = time.Now()

// For holds up whoever asks within d from now. It ends by itself.
func (h *Hold) For(d time.Duration) { h.until.Store(int64(time.Since(holdEpoch) + d)) }

// Left is how long to wait before more is read; 0: not at all.
func (h *Hold) Left() time.Duration {
	if h == nil {
		return 0
	}
	until := h.until.Load()
	if until == 0 {
		return 0
	}
	left := time.Duration(until) - time.Since(holdEpoch)
	if left <= 0 {
		h.until.CompareAndSwap(until, 0)
		return 0
	}
	return left
}
