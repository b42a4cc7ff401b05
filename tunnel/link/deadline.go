package link

import (
	"sync"
	"time"
)

// deadline is one direction's deadline of a stream. The session's mutex guards
// it; cond is what the direction waits on.
type deadline struct {
	timer   *time.Timer
	expired bool
}

// set arms the deadline for t; the zero time disarms it. An expired deadline
// that is moved into the future is in force again, as net.Conn has it.
func (d *deadline) set(t time.Time, cond *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.expired = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.expired = true
		cond.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.timer == timer { // not replaced meanwhile
			d.expired = true
			cond.Broadcast()
		}
	})
	d.timer = timer
}

// stop disarms the deadline without changing whether it has expired.
func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
