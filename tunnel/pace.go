package tunnel

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceSlack is how long a Pace that nobody made use of saves up for: what may
	// pass at once then. More would be heard by whoever shares the line, less
	// would cost those whose bytes come in jerks what they may have.
	paceSlack = 50 * time.Millisecond

	// paceLook is how often a direction that is held up looks whether its relay has
	// ended.
	paceLook = 500 * time.Millisecond
)

// Paces hold many flows together to a rate, in each direction by itself: Up is
// away from who asked.
type Paces struct {
	Up, Down Pace
}

// Pace is one direction of Paces. Any goroutine may use it at any time. The zero
// Pace holds up nobody.
//
// Nothing is lost by it: what may not pass yet waits where it is, so that
// whoever sent it is told to wait by the credit of its link or by TCP. Who came
// first goes first, a chunk (64 KiB) at a time.
type Pace struct {
	rate atomic.Int64 // bytes a second; 0: any
	held atomic.Int64 // nanoseconds that flows have waited, all together

	mu  sync.Mutex
	due time.Time // when all that was let pass is paid for
}

// Set has at most so many bytes a second pass from now on, in the long run; 0
// lifts that. What waits is let go as if it had been so before.
func (p *Pace) Set(bytesPerSecond int64) { p.set(bytesPerSecond, time.Now()) }

// Held is how long flows have waited so far, all together.
func (p *Pace) Held() time.Duration { return time.Duration(p.held.Load()) }

func (p *Pace) set(rate int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.rate.Swap(rate)
	if rate == 0 || was == 0 {
		p.due = time.Time{}
	} else if owed := p.due.Sub(now); owed > 0 {
		p.due = now.Add(time.Duration(float64(owed) * float64(was) / float64(rate)))
	}
}

// active says whether p holds up anybody. nil does not.
func (p *Pace) active() bool { return p != nil && p.rate.Load() > 0 }

// try lets n bytes pass if none before them have to wait.
func (p *Pace) try(n int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.After(now) {
		return false
	}
	p.book(n, now)
	return true
}

// back takes back what try let pass and what did not pass then.
func (p *Pace) back(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = p.due.Add(-p.cost(n))
}

// take has n bytes pass behind those that came before, and returns when.
func (p *Pace) take(n int, now time.Time) (when time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	when = p.due
	p.book(n, now)
	return when
}

// book counts n bytes. p.mu is held.
func (p *Pace) book(n int, now time.Time) {
	if saved := now.Add(-paceSlack); p.due.Before(saved) {
		p.due = saved
	}
	p.due = p.due.Add(p.cost(n))
}

// cost is how long n bytes take at the rate.
func (p *Pace) cost(n int) time.Duration {
	rate := p.rate.Load()
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// wait returns when n bytes may pass, or when ended is true.
func (p *Pace) wait(n int, ended func() bool) {
	began := time.Now()
	when := p.take(n, began)
	for wait := when.Sub(began); wait > 0 && !ended(); wait = time.Until(when) {
		time.Sleep(min(wait, paceLook))
	}
	if when.After(began) {
		p.held.Add(int64(time.Since(began)))
	}
}
