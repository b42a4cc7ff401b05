package tunnel

import (
	"sync"
	"time"
)

// Deadline wakes the goroutines that wait with a Cond when a point in time has passed. The
// Cond's lock guards it. The zero value never passes.
type Deadline struct {
	timer  *time.Timer
	passed bool
}

// Passed says whether it has passed.
func (d *Deadline) Passed() bool { return d.passed }

// Set arms d for t; the zero time disarms it. A Deadline that has passed and is moved
// into the future is in force again, as net.Conn has it.
func (d *Deadline) Set(t time.Time, cond *sync.Cond) {
	d.Stop()
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
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.timer == timer { // not replaced meanwhile
			d.passed = true
			cond.Broadcast()
		}
	})
	d.timer = timer
}

// Stop disarms d without changing whether it has passed.
func (d *Deadline) Stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
