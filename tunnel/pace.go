package tunnel

import (
	"slices"
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

	// paceSmall is the most that goes before larger pieces: a keystroke, a request,
	// a TLS handshake. Bulk over TLS comes in pieces of twice as much at least.
	paceSmall = 8 << 10

	// paceAhead is how much more small pieces may have than larger ones that wait.
	paceAhead = ChunkSize
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
// first goes first, a chunk (64 KiB) at a time; but small chunks go before larger
// ones, for up to half of the rate, so that nobody who types or asks waits behind a
// thousand downloads.
type Pace struct {
	rate atomic.Int64 // bytes a second; 0: any
	held atomic.Int64 // nanoseconds that flows have waited, all together

	mu           sync.Mutex
	due          time.Time // when all that was let pass is paid for
	small, large paceLine
	ahead        int         // bytes that small chunks had more than large ones that waited
	timer        *time.Timer // at due, while somebody waits
}

// paceLine is chunks that wait, in order of arrival.
type paceLine []*paced

// paced is a chunk that waits.
type paced struct {
	size int
	turn chan struct{} // closed when it may pass
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
	p.pass(now)
}

// active says whether p holds up anybody. nil does not.
func (p *Pace) active() bool { return p != nil && p.rate.Load() > 0 }

// try lets n bytes pass if none before them have to wait.
func (p *Pace) try(n int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.After(now) || p.waiting() {
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
	p.pass(time.Now())
}

// wait returns when n bytes may pass, or when ended is true.
func (p *Pace) wait(n int, ended func() bool) {
	w := p.enter(n)
	if w == nil {
		return
	}
	began := time.Now()
	defer func() { p.held.Add(int64(time.Since(began))) }()
	look := time.NewTicker(paceLook)
	defer look.Stop()
	for !ended() {
		select {
		case <-w.turn:
			return
		case <-look.C:
		}
	}
	p.leave(w)
}

// enter lets n bytes pass, or returns what says when they may.
func (p *Pace) enter(n int) *paced {
	if p.try(n, time.Now()) {
		return nil
	}
	w := &paced{n, make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.line(n)
	*line = append(*line, w)
	p.pass(time.Now())
	return w
}

// leave takes one out of its line.
func (p *Pace) leave(w *paced) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.line(w.size)
	if i := slices.Index(*line, w); i >= 0 {
		*line = slices.Delete(*line, i, i+1)
	}
}

// line is where chunks of a size wait.
func (p *Pace) line(size int) *paceLine {
	if size <= paceSmall {
		return &p.small
	}
	return &p.large
}

// waiting says whether anything waits. p.mu is held, here and below.
func (p *Pace) waiting() bool { return len(p.small)+len(p.large) > 0 }

// pass lets go what may pass now, and comes again when the next may.
func (p *Pace) pass(now time.Time) {
	for p.waiting() && !p.due.After(now) {
		w := p.next()
		p.book(w.size, now)
		close(w.turn)
	}
	if !p.waiting() {
		return
	}
	if wait := p.due.Sub(now); p.timer == nil {
		p.timer = time.AfterFunc(wait, p.passDue)
	} else {
		p.timer.Reset(wait)
	}
}

func (p *Pace) passDue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(time.Now())
}

// next takes out whose turn it is.
func (p *Pace) next() *paced {
	if len(p.large) == 0 {
		p.ahead = 0
		return p.small.pop()
	}
	if len(p.small) == 0 || p.ahead >= paceAhead {
		w := p.large.pop()
		p.ahead = max(0, p.ahead-w.size)
		return w
	}
	w := p.small.pop()
	p.ahead += w.size
	return w
}

// pop takes out the first. There must be one.
func (l *paceLine) pop() *paced {
	w := (*l)[0]
	(*l)[0] = nil
	if *l = (*l)[1:]; len(*l) == 0 {
		*l = nil
	}
	return w
}

// book counts n bytes.
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
