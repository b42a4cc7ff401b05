package limits

import "time"

// bucket has room for what may happen in a second. It has no lock.
type bucket struct {
	level  float64
	filled time.Time // zero: never
}

// fill adds what has come up since. What is owed is paid for in a second, also where
// the rate was higher when it was taken.
func (b *bucket) fill(perSecond int, now time.Time) {
	rate := float64(perSecond)
	if b.filled.IsZero() {
		b.level = rate
	}
	b.level = min(rate, max(-rate, b.level)+rate*now.Sub(b.filled).Seconds())
	b.filled = now
}
