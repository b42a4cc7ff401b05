package peers

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff returns the pauses after failures: the first is Base, and each further one
// in a row Growth times as long, up to Limit. All are jittered.
type Backoff struct {
	Base, Limit time.Duration
	Growth      float64

	fails int // in a row
}

// Succeed forgets failures.
func (b *Backoff) Succeed() { b.fails = 0 }

// Failure is the pause after a failed attempt.
func (b *Backoff) Failure() time.Duration {
	b.fails++
	return Jitter(grow(b.Base, b.Growth, b.fails-1, b.Limit))
}

// grow is base times factor to the power of n, at most limit.
func grow(base time.Duration, factor float64, n int, limit time.Duration) time.Duration {
	grown := float64(base) * math.Pow(factor, float64(n))
	if grown < float64(limit) {
		return time.Duration(grown)
	}
	return limit // also where grown is not a number, as after endless failures with a base of 0
}

// Jitter spreads d over its upper half, so that clients which lost a server at the
// same moment do not come back at the same moment.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
