package limits

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/small"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// Tenant is the part of one cluster, which is divided among its clients, with the
// bounds of its settings. Any goroutine may use it.
type Tenant struct {
	name   string
	parts  parts
	agents *shares.Share // memory of agents' connections; nil: no bound
	routes *shares.Share // what other servers are told of its agents; nil: no bound
	turns  *turns

	Paces  tunnel.Paces // of its connections
	bounds atomic.Pointer[tenant.Bounds]

	mu      sync.Mutex
	clients small.Map[clientKey, *client] // that are connected
	open    int                           // connections that are open, or being dialed
	fresh   bucket                        // what dialsPerSecond leaves of new connections
	vain    bucket                        // and of resumptions that found no connection; below 0 all wait
}

// parts are the resources that are divided.
type parts struct {
	dials   *shares.Pool
	resumes *shares.Pool // dials that resume a connection: these do not fail for new ones, nor the other way round
	budget  *shares.Budget
	grpc    *shares.Budget
	sockets *shares.Pool // that the server itself connects
}

// Budget returns the memory of the cluster's connections.
func (t *Tenant) Budget() *shares.Budget { return t.parts.budget }

// PendingDials returns how many dials of its clients are pending, without those that
// resume a connection.
func (t *Tenant) PendingDials() int { return int(t.parts.dials.Used()) }

// SetBounds puts bounds into force, for open connections too.
func (t *Tenant) SetBounds(to tenant.Bounds) {
	t.bounds.Store(&to)
	t.parts.budget.Bound(int64(to.MemoryMiB) << 20)
	t.Paces.Up.Set(to.BytesPerSecond())
	t.Paces.Down.Set(to.BytesPerSecond())
}

// Admit holds a dial to the tenant's bounds. If it admits the dial, it counts the
// connection until its end, and answered must be called with the dial's error.
//
// A dial that resumes a connection counts too, but is not refused: its ends have the
// connection already and must not lose it to a bound. Each resumption that finds no
// connection is charged, so that claiming one is no way around dialsPerSecond; beyond
// that the cluster's resumptions are told to come again, which loses nothing.
func (t *Tenant) Admit(f *tunnel.Flow) (answered func(error), err error) {
	to := t.bounds.Load()
	if to == nil { // the server's own cluster
		return func(error) {}, nil
	}
	perSecond := to.DialsPerSecond
	if !f.Resume.Again() {
		if reason := t.take(f, *to, time.Now()); reason != "" {
			return nil, &tunnel.DialError{Failure: tunnel.FailBound, Address: f.Address, Reason: reason}
		}
		return func(error) {}, nil
	}
	if !t.credible(perSecond, time.Now()) {
		return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
			Reason: fmt.Sprintf("this cluster resumed more than %d connections a second that do not exist", perSecond)}
	}
	t.take(f, tenant.Bounds{}, time.Now())
	return func(err error) {
		if tunnel.FailureOf(err) == tunnel.FailGone {
			t.charge(perSecond, time.Now())
		}
	}, nil
}

// take counts a connection until its end, or says which bound keeps it out. There may
// be so many dials a second, with a burst of as many. A bound of 0 is none.
func (t *Tenant) take(f *tunnel.Flow, to tenant.Bounds, now time.Time) (refusal string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if to.Connections > 0 && t.open >= to.Connections {
		return fmt.Sprintf("bound reached: this cluster may have %d connections at once on one server", to.Connections)
	}
	if to.DialsPerSecond > 0 {
		t.fresh.fill(to.DialsPerSecond, now)
		if t.fresh.level < 1 {
			return fmt.Sprintf("bound reached: this cluster may make %d dials a second on one server", to.DialsPerSecond)
		}
		t.fresh.level--
	}
	t.open++
	f.AtEnd(t.end)
	return ""
}

// end counts a connection that has ended.
func (t *Tenant) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
}

// credible reports whether few enough connections were resumed in vain.
func (t *Tenant) credible(perSecond int, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vain.fill(perSecond, now)
	return perSecond == 0 || t.vain.level >= 0
}

// charge counts a connection that was resumed in vain. However many there were, they
// are paid for in a second.
func (t *Tenant) charge(perSecond int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vain.fill(perSecond, now)
	t.vain.level = max(-float64(perSecond), t.vain.level-1)
}

// Start returns when a client may dial within its share and it is its turn, or says
// why it may not. done must be called when the dial has ended; the connection's
// memory is given back at the connection's end.
func (t *Tenant) Start(ctx context.Context, f *tunnel.Flow) (done func(), err error) {
	c, memory := f.Client, memoryOf(f)
	if !c.Budget.Take(memory) {
		failure := tunnel.FailExhausted
		if c.Budget.AtBound() {
			failure = tunnel.FailBound
		}
		return nil, &tunnel.DialError{Failure: failure, Address: f.Address, Reason: NoMemory(c)}
	}
	f.AtEnd(func() { c.Budget.Give(memory) })
	dials := c.Dials
	if f.Resume.Again() {
		dials = c.Resumes
	}
	if !dials.Take(1) {
		return nil, &tunnel.DialError{Failure: tunnel.FailExhausted, Address: f.Address,
			Reason: fmt.Sprintf("this client's share is used up: it has %d pending dials", dials.Used())}
	}
	dialed, err := t.turns.wait(ctx, c)
	if err != nil {
		dials.Give(1)
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return func() {
		dialed()
		dials.Give(1)
	}, nil
}
