// Package wait has the waits of loops that run in the background. Whoever runs a loop owns
// its goroutine, its channels and its context; the package owns nothing.
package wait

import (
	"context"
	"time"
)

// For waits for d; false: ctx has ended before.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Go calls do on a goroutine of its own. done is closed when it has returned.
func Go(do func()) (done <-chan struct{}) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		do()
	}()
	return returned
}

// looks is how often Awake looks at the clock.
const looks = 10

// Awake calls do once this process has run for d, unless stop is called before, which returns
// when do is not running any more. Of a time for which the process stood still, as in a machine
// that was suspended, a tenth of d counts: what it waited for may have come meanwhile.
func Awake(d time.Duration, do func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := Go(func() {
		for range looks {
			if !For(ctx, d/looks) {
				return
			}
		}
		do()
	})
	return func() {
		cancel()
		<-done
	}
}

// Every calls do at this interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Signal wakes the loop that receives from c, which has room for one signal: of several, it
// meets one. It does not block.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
