package server

import (
	"fmt"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// bounds keep a tenant to what its folder allows it on one server.
type bounds struct {
	mu    sync.Mutex
	seats int    // connections that are open, or being dialed
	dials bucket // that may be made at once
	vain  bucket // what may be resumed at once that is not there
}

// bucket has room for what may happen in a second. It is not for several
// goroutines.
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

// bound keeps a dial to the tenant's bounds, and is what answered asks for next. What
// goes on with a connection takes a place as well, but is not refused: its ends have
// it already, and what they have is not to be lost to a bound.
func (cl *cluster) bound(f *tunnel.Flow) (perSecond int, err error) {
	to := cl.terms.Load().bounds
	perSecond = to.DialsPerSecond
	if f.Resume.Again() {
		return perSecond, cl.bounds.resume(f, perSecond)
	}
	if reason := cl.bounds.take(f, to.Connections, perSecond, time.Now()); reason != "" {
		return perSecond, &tunnel.DialError{Failure: tunnel.FailBound, Address: f.Address, Reason: reason}
	}
	return perSecond, nil
}

// resume is bound for a connection that its opener says exists. Each that its agent
// does not have is charged, so that nobody gets around perSecond by saying so;
// that an agent is away is ordinary, and asks nobody. Whoever is refused for what
// others claimed comes again: nothing is lost by that alone.
func (b *bounds) resume(f *tunnel.Flow, perSecond int) error {
	if !b.credible(perSecond, time.Now()) {
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
			Reason: fmt.Sprintf("this cluster resumed more than %d connections a second that do not exist", perSecond)}
	}
	b.take(f, 0, 0, time.Now())
	return nil
}

// answered notes how a dial within bounds ended.
func (b *bounds) answered(f *tunnel.Flow, err error, perSecond int, now time.Time) {
	if f.Resume.Again() && tunnel.FailureOf(err) == tunnel.FailGone {
		b.charge(perSecond, now)
	}
}

// credible says whether not too many connections were claimed in vain.
func (b *bounds) credible(perSecond int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vain.fill(perSecond, now)
	return perSecond == 0 || b.vain.level >= 0
}

// charge notes a connection that was claimed in vain. However many there were,
// they are paid for in a second.
func (b *bounds) charge(perSecond int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vain.fill(perSecond, now)
	b.vain.level = max(-float64(perSecond), b.vain.level-1)
}

// take gives a connection a seat until its end, or says why there is none: there may be so
// many connections, and so many dials a second, with a burst of as many. 0 is no
// bound.
func (b *bounds) take(f *tunnel.Flow, connections, perSecond int, now time.Time) (refusal string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if connections > 0 && b.seats >= connections {
		return fmt.Sprintf("bound reached: this cluster may have %d connections at once on one server", connections)
	}
	if perSecond > 0 {
		b.dials.fill(perSecond, now)
		if b.dials.level < 1 {
			return fmt.Sprintf("bound reached: this cluster may make %d dials a second on one server", perSecond)
		}
		b.dials.level--
	}
	b.seats++
	f.AtEnd(b.leave)
	return ""
}

// leave gives up a seat.
func (b *bounds) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seats--
}
