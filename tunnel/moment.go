package tunnel

import (
	"sync/atomic"
	"time"
)

// Moment is a point in time that is only compared with others of the process, in
// nanoseconds since its start; 0: none. It takes 8 bytes, where a time.Time takes 24, and
// setting the clock does not change how far apart two are.
type Moment int64

// born is the start that moments are counted from.
var born = time.Now()

// Now returns the present. Any goroutine may call it.
func Now() Moment { return Moment(time.Since(born)) }

// At returns the moment of t, a result of time.Now that may be earlier than the process.
func At(t time.Time) Moment { return Moment(t.Sub(born)) }

// Hold pauses readers for a moment at a time, so that they bring in nothing more. The
// zero Hold, and nil, pause none. Any goroutine may use it at any time.
type Hold struct {
	until atomic.Int64 // a Moment; 0: it is over
}

// For pauses readers for d from now. It ends by itself.
func (h *Hold) For(d time.Duration) { h.until.Store(int64(Now()) + int64(d)) }

// Left returns how long to wait before the next read; 0: not at all.
func (h *Hold) Left() time.Duration {
	if h == nil {
		return 0
	}
	until := h.until.Load()
	if until == 0 {
		return 0
	}
	left := time.Duration(until) - time.Duration(Now())
	if left <= 0 {
		h.until.CompareAndSwap(until, 0)
		return 0
	}
	return left
}
