package limits

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// Gate holds dials to a tenant's bounds, and counts the connections that are open. Clients have
// one and nodes another, so that the bounds which clients reach keep no node from its API
// server.
type Gate struct {
	mu    sync.Mutex
	to    *tenant.Bounds // nil: the server's own cluster, which has none
	open  int            // connections that are open, or being dialed
	fresh bucket         // what dialsPerSecond leaves of new connections
	vain  bucket         // and of resumptions that found no connection; below 0 all wait
}

func (g *Gate) set(to tenant.Bounds) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = &to
}

// Admit holds a dial to the bounds. If it admits the dial, it counts the connection until its
// end, and answered must be called with the dial's error.
//
// A dial that resumes a connection counts too, but is not refused: its ends have the
// connection already and must not lose it to a bound. Each resumption that finds no
// connection is charged, so that claiming one is no way around dialsPerSecond; beyond
// that the cluster's resumptions are told to come again, which loses nothing.
func (g *Gate) Admit(f *tunnel.Flow) (answered func(error), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	answered = func(error) {}
	switch {
	case g.to == nil:
		return answered, nil
	case f.Resume.Again():
		answered, err = g.resumed, g.judgeResumed(f)
	default:
		err = g.judge(f)
	}
	if err != nil {
		return nil, err
	}
	g.open++
	f.AtEnd(g.end)
	return answered, nil
}

// judge refuses a new connection beyond a bound. There may be so many dials a second, with a
// burst of as many.
func (g *Gate) judge(f *tunnel.Flow) error {
	if most := g.to.Connections; most > 0 && g.open >= most {
		return reached(f, Connections, fmt.Sprintf("bound reached: this cluster may have %d connections at once on one server", most))
	}
	if most := g.to.DialsPerSecond; most > 0 && !g.fresh.take(most) {
		return reached(f, DialsPerSecond, fmt.Sprintf("bound reached: this cluster may make %d dials a second on one server", most))
	}
	return nil
}

// judgeResumed refuses to resume a connection while too many were resumed in vain.
func (g *Gate) judgeResumed(f *tunnel.Flow) error {
	most := g.to.DialsPerSecond
	if g.vain.fill(most); g.vain.level >= 0 {
		return nil
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
		Reason: fmt.Sprintf("this cluster resumed more than %d connections a second that do not exist", most)}
}

// resumed charges a connection that was resumed in vain. However many there were, they are
// paid for in a second.
func (g *Gate) resumed(err error) {
	if tunnel.FailureOf(err) != tunnel.FailGone {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.to.DialsPerSecond
	g.vain.fill(most)
	g.vain.level = max(-float64(most), g.vain.level-1)
}

// end counts a connection that has ended.
func (g *Gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

// bucket has room for what may happen in a second. It has no lock.
type bucket struct {
	level  float64
	filled time.Time // zero, which is long ago: never
}

// take takes one of perSecond, if there is one.
func (b *bucket) take(perSecond int) bool {
	b.fill(perSecond)
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

// fill adds perSecond for each second since the last fill. A debt is paid within a
// second, also if the rate was higher when it was made.
func (b *bucket) fill(perSecond int) {
	rate, now := float64(perSecond), time.Now()
	b.level = min(rate, max(-rate, b.level)+rate*now.Sub(b.filled).Seconds())
	b.filled = now
}

// Bound is a tenant's that refuses dials.
type Bound int

// The bounds.
const (
	MemoryMiB Bound = iota
	Connections
	DialsPerSecond
	BoundKinds = iota
)

// String is its name among the tenant's settings.
func (b Bound) String() string {
	return [BoundKinds]string{"memoryMiB", "connections", "dialsPerSecond"}[b]
}

// boundError says which bound was reached.
type boundError struct {
	bound  Bound
	reason string
}

func (e *boundError) Error() string { return e.reason }

// reached is why a dial fails beyond a bound.
func reached(f *tunnel.Flow, b Bound, reason string) error {
	return &tunnel.DialError{Failure: tunnel.FailBound, Address: f.Address, Reason: reason, Err: &boundError{b, reason}}
}

// BoundOf is the bound beyond which a dial has failed with FailBound. Where another server has
// refused it, to which it was forwarded, that is MemoryMiB: such a server holds it to no other.
func BoundOf(err error) Bound {
	if e, ok := errors.AsType[*boundError](err); ok {
		return e.bound
	}
	return MemoryMiB
}
