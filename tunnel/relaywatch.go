package tunnel

import (
	"sync"
	"time"
)

// relayWatch resets a relay whose traffic stands still for longer than it may.
// It looks at the byte counters now and then instead of setting a deadline on
// every read, so it costs nothing while bytes flow.
type relayWatch struct {
	relay *Relay

	mu    sync.Mutex
	timer *time.Timer
	bound time.Duration // the tightest so far; 0: none
	seen  int64
	done  bool

	sources sourceWatch
}

func newRelayWatch(r *Relay) *relayWatch {
	w := &relayWatch{relay: r}
	if r.Idle > 0 {
		w.limit(r.Idle)
	}
	return w
}

// limit bounds from now on how long nothing may pass; it only ever tightens.
func (w *relayWatch) limit(bound time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || (w.bound > 0 && w.bound <= bound) {
		return
	}
	w.bound = bound
	w.seen = w.passed()
	if w.timer == nil {
		w.timer = time.AfterFunc(bound, w.check)
	} else {
		w.timer.Reset(bound)
	}
}

func (w *relayWatch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	if now := w.passed(); now != w.seen {
		w.seen = now
		w.timer.Reset(w.bound)
		return
	}
	w.done = true
	w.relay.abort(errRelayIdle)
}

func (w *relayWatch) passed() int64 {
	up, down := w.relay.Flow.Sent()
	return up + down
}

func (w *relayWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	for _, timer := range []*time.Timer{w.timer, w.sources.timer} {
		if timer != nil {
			timer.Stop()
		}
	}
}
