package tunnel

import (
	"sync"
	"sync/atomic"
	"time"
)

// sourceLook is how often a relay that writes looks whether its sources are
// still there. Rarely enough to cost nothing beside bulk, and by 65,536 stalled
// connections at once; often enough that a client which is gone and a
// destination which stalls do not keep each other's memory for long.
const sourceLook = 2 * time.Second

// takenUnread is what every destination takes though nobody reads: a link's
// window is 16 KiB at the least, and a socket's buffers are larger. No direction
// stalls before it has carried more, so that short connections, of which there
// may be thousands a second, need no timer.
const takenUnread = 8 << 10

// watch ends a relay that stands still: one whose bytes have not moved for
// longer than they may, or one whose source has failed while its destination
// takes nothing. (Nobody reads from the source then, and the kernel tells only
// those who do of a reset.) It looks now and then, at the byte counters and the
// sources, instead of setting a deadline on every read. So it costs nothing
// while bytes flow, and nothing at all on an idle connection that may be idle.
// A source that ended in order, behind bytes that still wait, is left alone.
type watch struct {
	relay   *Relay
	halves  [2]*half
	looking atomic.Bool // a look at the sources is due

	// No method of a Conn is called with mu held: limit is called with a
	// Conn's locks held.
	mu     sync.Mutex
	timer  *time.Timer // fires at the earlier of what is due; nil while nothing was
	look   time.Time   // when the sources are looked at; zero: not
	check  time.Time   // when the counters are looked at; zero: never
	bound  time.Duration
	passed int64 // what the counters showed when they were last looked at
	done   bool
}

// limit bounds from now on how long nothing may pass; it only ever tightens.
func (w *watch) limit(bound time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || w.bound > 0 && w.bound <= bound {
		return
	}
	now := time.Now()
	w.bound, w.check, w.passed = bound, now.Add(bound), w.count()
	w.arm(now)
}

// lookSoon is called as a write begins, with its half's held set before, so
// that either it sees that a look is over or that look sees the write.
func (w *watch) lookSoon() {
	if w.looking.Load() || !w.looking.CompareAndSwap(false, true) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		now := time.Now()
		w.look = now.Add(sourceLook)
		w.arm(now)
	}
}

// arm sets the timer to what is due first.
func (w *watch) arm(now time.Time) {
	next := w.check
	if next.IsZero() || !w.look.IsZero() && w.look.Before(next) {
		next = w.look
	}
	switch {
	case next.IsZero():
	case w.timer == nil:
		w.timer = time.AfterFunc(next.Sub(now), w.fire)
	default:
		w.timer.Reset(next.Sub(now))
	}
}

// fire does what is due. A relay that stands still is ended whatever its
// sources are like.
func (w *watch) fire() {
	switch still, look := w.due(time.Now()); {
	case still:
		w.relay.abort(errRelayIdle)
	case look:
		w.lookAtSources()
	}
}

func (w *watch) due(now time.Time) (still, look bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return false, false
	}
	if look = !w.look.IsZero() && !now.Before(w.look); look {
		w.look = time.Time{}
	}
	if !w.check.IsZero() && !now.Before(w.check) {
		passed := w.count()
		still = passed == w.passed
		w.passed, w.check = passed, now.Add(w.bound)
	}
	if w.done = still; !still {
		w.arm(now)
	}
	return still, look
}

func (w *watch) lookAtSources() {
	w.looking.Store(false)
	for _, h := range w.halves {
		if !h.held.Load() {
			continue
		}
		if cause := h.src.Failed(); cause != nil {
			h.Fail(cause)
			return
		}
		w.lookSoon()
	}
}

func (w *watch) count() int64 {
	up, down := w.relay.Flow.Sent()
	return up + down
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
