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

// StopTime is the most that a timer is late by in a process that runs. If it is later, the process
// stood still, as in a machine that was suspended: what it waits for may have come meanwhile.
const StopTime = 100 * time.Millisecond

// takenUnread is how many bytes every destination takes without a reader: a link's
// window is 16 KiB at the least, and a socket's buffers are larger. No direction
// stalls before it has carried more, so that short connections, of which there
// may be thousands a second, need no timer.
const takenUnread = 8 << 10

// watchdog ends a relay that stands still: one whose bytes have not moved for
// longer than its bound, or one whose source has failed while its destination
// takes nothing. (The source is not read then, and the kernel reports a reset to
// readers alone.) It looks now and then at the byte counters and the
// sources, instead of setting a deadline on every read. So it costs nothing
// while bytes flow, and nothing at all on an idle connection without a bound.
// A source that ended in order, behind bytes that still wait, is left alone.
type watchdog struct {
	relay   *Relay
	looking atomic.Bool // a look at the sources is due

	// No method of a Conn is called with mu held: limit is called with a
	// Conn's locks held.
	mu     sync.Mutex
	timer  *time.Timer   // fires at the earlier of look and check; nil before the first
	look   time.Time     // when to look at the sources; zero: not
	check  time.Time     // when to look at the counters; zero: never
	bound  time.Duration // that the counters may stand still; 0: any
	passed int64         // the counters at the last look
	done   bool
}

// limit bounds from now on how long nothing may pass; it only ever tightens.
func (w *watchdog) limit(bound time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || w.bound > 0 && w.bound <= bound {
		return
	}
	now := time.Now()
	w.bound, w.check, w.passed = bound, now.Add(bound), w.count()
	w.arm(now)
}

// lookSoon is called as a write begins, after its direction's held was set: so either
// it sees that a look is over, or that look sees the write.
func (w *watchdog) lookSoon() {
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

// arm sets the timer to the earlier of look and check.
func (w *watchdog) arm(now time.Time) {
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

// fire ends a relay that stands still, else looks at its sources if that is due.
func (w *watchdog) fire() {
	switch still, look := w.due(time.Now()); {
	case still:
		w.relay.abort(errRelayIdle)
	case look:
		w.lookAtSources()
	}
}

func (w *watchdog) due(now time.Time) (still, look bool) {
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
		still = passed == w.passed && now.Sub(w.check) <= StopTime
		w.passed, w.check = passed, now.Add(w.bound)
	}
	if w.done = still; !still {
		w.arm(now)
	}
	return still, look
}

func (w *watchdog) lookAtSources() {
	w.looking.Store(false)
	for _, d := range [...]*direction{w.relay.up, w.relay.down} {
		if !d.held.Load() {
			continue
		}
		if cause := d.src.Failed(); cause != nil {
			d.Fail(cause)
			return
		}
		w.lookSoon()
	}
}

func (w *watchdog) count() int64 {
	up, down := w.relay.Flow.Sent()
	return up + down
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
