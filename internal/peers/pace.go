package peers

import (
	"time"
)

const (
	// quickPause is how long a hit on a server that is connected already
	// delays the next attempt, while there is reason to hope: well below the
	// 100 ms that a duplicate may cost, so that all servers behind one load
	// balancer are found in a second or two.
	quickPause = 50 * time.Millisecond
	// slowPause is the first pause once hope wanes; it grows by slowGrowth.
	slowPause  = 200 * time.Millisecond
	slowGrowth = 1.3
	// searchPause caps it while a server may just be on its way up. At this
	// pace, two attempts at a time, the one of three servers that was
	// replaced is found within 15 s of coming up (all but 1 in 500 times).
	searchPause = 2 * time.Second
	// searchTries is after how many vain tries the count is taken for too
	// high: half of the limit from then on, one attempt at a time, and after
	// as many again all of it.
	searchTries = 60
	// maxHope is the largest number of servers that quick tries are for. A
	// server may tell any number.
	maxHope = 64
	// SearchBurst and searchEvery bound all attempts at addresses whose server
	// is connected, whatever servers say and however they come and go. The
	// burst finds 50 servers behind one load balancer.
	SearchBurst = 256
	searchEvery = time.Second

	// lossEvery is how often one more short session is taken for one that was
	// cut.
	lossEvery = 5 * time.Second
	// goodLife is how long a session must last to make up for one that ended at
	// once. A server that drops those it accepted takes less; a network that cuts
	// links several times a second seldom does.
	goodLife = 50 * time.Millisecond
)

// pace says how long to wait after each outcome of dialing one address. It is
// arithmetic only; its owner keeps the clock.
type pace struct {
	Backoff
	vain  int // hits on known servers in a row, quick ones not counted
	quick int // quick pauses left

	losses int       // of sessions, that no good life has made up for
	cuts   allowance // of short sessions that are no failures
	cutAt  time.Time // when the last session was cut
	struck int       // attempts behind that, within Base, that failed
}

// failed is the pause after a failed attempt. What has just cut a session may have
// cut the attempt as well: for as long as Base, pauses grow from spread.
func (p *pace) failed(now time.Time, spread time.Duration) time.Duration {
	if spread == 0 || now.Sub(p.cutAt) >= p.Base {
		return p.Failure()
	}
	p.struck++
	return Jitter(grow(spread, 2, p.struck, p.Base))
}

// lost is the pause after a session that had lasted for life and was cut: up to
// spread, and twice as long for each such session before it that ended at once.
func (p *pace) lost(life, spread time.Duration) time.Duration {
	p.losses = max(0, p.losses-int(life/goodLife))
	pause := Jitter(grow(spread, 2, p.losses, p.Limit))
	p.losses++
	return pause
}

// hope allows quick pauses for a search among want servers: twice as many tries
// as servers and a few more suffice for a search, mostly.
func (p *pace) hope(want int) { p.fails, p.vain, p.quick = 0, 0, 2*min(want, maxHope)+4 }

// doubtful says that the search has been in vain for so long that there may be
// nothing to find.
func (p *pace) doubtful() bool { return p.vain > searchTries }

// calm makes the search slow, and begins it anew, after a server was lost: it
// takes a while to come back, and thousands of agents miss it at once.
func (p *pace) calm() { p.vain, p.quick = 0, 0 }

// duplicate is the pause after a hit on a server that is connected already.
func (p *pace) duplicate() time.Duration {
	p.fails = 0
	if p.quick > 0 {
		p.quick--
		return Jitter(quickPause)
	}
	p.vain++
	switch {
	case p.vain > 2*searchTries:
		return Jitter(max(searchPause, p.Limit))
	case p.doubtful():
		return Jitter(max(searchPause, p.Limit/2))
	}
	return Jitter(grow(slowPause, slowGrowth, p.vain-1, min(searchPause, p.Limit)))
}

// allowance is a stock, of attempts for example, that grows by one at regular
// intervals, up to a burst. The zero value is full.
type allowance struct {
	full time.Time // when it is, if nothing is taken
}

// take says whether one more may be taken now, and else when.
func (a *allowance) take(now time.Time, burst int, every time.Duration) (ok bool, next time.Time) {
	full := a.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(every)
	if next = full.Add(-time.Duration(burst) * every); next.After(now) {
		return false, next
	}
	a.full = full
	return true, now
}
