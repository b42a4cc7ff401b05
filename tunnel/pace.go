package tunnel

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceSlack is how long an unused Pace saves up for: the bytes of that time may
	// pass at once. More would delay others on the line, less would keep flows whose
	// bytes come in jerks below their rate.
	paceSlack = 50 * time.Millisecond

	// paceLook is how often a waiting direction looks whether its relay has ended.
	paceLook = 500 * time.Millisecond

	// paceSmall is the most that goes before larger pieces: a keystroke, a request,
	// a TLS handshake. Bulk over TLS comes in pieces of twice as much at least.
	paceSmall = 8 << 10

	// paceAhead is how many bytes small pieces may be ahead of larger ones that wait.
	paceAhead = ChunkSize
)

// Paces hold many flows together to a rate, in each direction by itself: Up is
// away from the clients.
type Paces struct {
	Up, Down Pace
}

// Pace is one direction of Paces. Any goroutine may use it at any time. The zero
// Pace has no rate.
//
// Nothing is lost by it: a chunk that may not pass yet waits where it is, and the
// credit of its link, or TCP, makes its sender wait. Chunks pass in order of arrival,
// 64 KiB at most each; but small chunks go before larger ones, for up to half of the
// rate, so that a keystroke or a request does not wait behind a thousand downloads.
type Pace struct {
	rate atomic.Int64 // bytes a second; 0: any
	held atomic.Int64 // nanoseconds that flows have waited, all together

	mu           sync.Mutex
	due          time.Time // when the rate has made up for all bytes that passed
	small, large paceLine
	ahead        int         // bytes by which small chunks are ahead of large ones that wait
	timer        *time.Timer // at due, while chunks wait
}

// paceLine is chunks that wait, in order of arrival.
type paceLine []*paced

// paced is a waiting chunk.
type paced struct {
	size int
	turn chan struct{} // closed when it may pass
}

// Set limits the rate from now on, in the long run; 0 lifts that. Chunks that wait pass
// as if the rate had been so before.
func (p *Pace) Set(bytesPerSecond int64) { p.set(bytesPerSecond, time.Now()) }

// Held returns how long flows have waited so far, all together.
func (p *Pace) Held() time.Duration { return time.Duration(p.held.Load()) }

func (p *Pace) set(rate int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.rate.Swap(rate)
	if rate == 0 {
		p.due = time.Time{}
	} else if owed := p.due.Sub(now); owed > 0 {
		p.due = now.Add(time.Duration(float64(owed) * float64(was) / float64(rate)))
	}
	p.pass(now)
}

// active reports whether p has a rate. nil has none.
func (p *Pace) active() bool { return p != nil && p.rate.Load() > 0 }

// try lets n bytes pass unless others wait before them.
func (p *Pace) try(n int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.After(now) || p.waiting() {
		return false
	}
	p.book(n, now)
	return true
}

// back returns n of the bytes that try let pass, which did not pass.
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

// enter lets n bytes pass and returns nil, or returns the chunk that waits.
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

// leave removes a chunk that waits.
func (p *Pace) leave(w *paced) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.line(w.size)
	if i := slices.Index(*line, w); i >= 0 {
		*line = slices.Delete(*line, i, i+1)
	}
}

// line returns the line in which chunks of a size wait.
func (p *Pace) line(size int) *paceLine {
	if size <= paceSmall {
		return &p.small
	}
	return &p.large
}

// waiting reports whether chunks wait. p.mu is held, here and below.
func (p *Pace) waiting() bool { return len(p.small)+len(p.large) > 0 }

// pass lets the chunks go that may pass now, and sets the timer for the next.
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

// next removes and returns the chunk that passes next.
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

// pop removes and returns the first chunk. There must be one.
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

// cost returns how long n bytes take at the rate.
func (p *Pace) cost(n int) time.Duration {
	rate := p.rate.Load()
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}
