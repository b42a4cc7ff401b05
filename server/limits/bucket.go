package limits

import "time"

// bucket has room for what may happen in a second. It has no lock.
type bucket struct {
	level  float64
	filled time.Time // zero: never
}

// fill adds perSecond for each second since the last fill. A debt is paid within a
// second, also if the rate was higher when it was made.
func (b *bucket) fill(perSecond int, now time.Time) {
	rate := float64(perSecond)
	if b.filled.IsZero() {
		b.level = rate
	}
	b.level = min(rate, max(-rate, b.level)+rate*now.Sub(b.filled).Seconds())
	b.filled = now
}
