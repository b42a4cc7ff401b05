package legacy

import (
	"sync"
	"time"
)

// deadline wakes a condition when a point in time has passed. It belongs to
// the condition's lock.
type deadline struct {
	timer  *time.Timer
	turn   int // which timer counts
	passed bool
}

// set arranges for t; the zero time means never.
func (d *deadline) set(t time.Time, cond *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.turn++
	d.passed = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.passed = true
		cond.Broadcast()
		return
	}
	turn := d.turn
	d.timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.turn == turn {
			d.passed = true
			cond.Broadcast()
		}
	})
}
