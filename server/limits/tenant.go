package limits

import (
	"context"
	"fmt"
	"sync"

	"konnectivity/internal/memory"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// Tenant is the part of one cluster, which is divided among its clients, with the
// bounds of its settings. Any goroutine may use it.
type Tenant struct {
	name  string
	parts parts
	turns *turns

	Agents *shares.Share // memory of agents' connections
	Routes *shares.Share // what other servers are told of its agents: a route and identifiers of each

	// Clients is for what clients dial, and Nodes for what nodes do. All bounds hold for both. But
	// nodes dial nothing but their API server, whose address is link.APIAddress for all of them:
	// a bound that goes by destinations would take it for one.
	Clients, Nodes Gate

	Paces tunnel.Paces // of all connections

	mu        sync.Mutex
	connected memory.Map[clientKey, *client]
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

// SetBounds puts bounds into force, for open connections too.
func (t *Tenant) SetBounds(to tenant.Bounds) {
	t.Clients.set(to)
	t.Nodes.set(to)
	t.parts.budget.Bound(int64(to.MemoryMiB) << 20)
	t.Paces.Up.Set(to.BytesPerSecond())
	t.Paces.Down.Set(to.BytesPerSecond())
}

// Start returns when a client may dial within its share and it is its turn, or says
// why it may not. done must be called when the dial has ended; the connection's
// memory is given back at the connection's end.
func (t *Tenant) Start(ctx context.Context, f *tunnel.Flow) (done func(), err error) {
	c, memory := f.Client, memoryOf(f)
	if !c.Budget.Take(memory) {
		if c.Budget.AtBound() {
			return nil, reached(f, MemoryMiB, BoundReached)
		}
		return nil, &tunnel.DialError{Failure: tunnel.FailExhausted, Address: f.Address, Reason: ShareUsedUp}
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
