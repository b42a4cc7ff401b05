package limits

import (
	"cmp"

	"konnectivity/tunnel/link"
	"konnectivity/tunnel/shares"
)

// maxDials bounds the pending dials of all clients together: seven eighths of what
// an agent takes on one link. The rest is for dials that were given up and that the
// agent has not let go of yet. At some 13 KiB each they take 45 MiB.
const maxDials = link.MaxDials / 8 * 7

// unbounded is more than anything that is counted here, and little enough for shares to
// multiply it.
const unbounded = 1 << 50

// Limits are those of a server. Any goroutine may use them.
type Limits struct {
	own    *Tenant
	Agents *shares.Pool // memory of agents' connections
	routes *shares.Pool // what other servers are told of agents
	turns  *turns
}

// New returns limits that divide a budget for links, one for gRPC, so many bytes for the
// connections of agents, so many routes of agents that other servers are told of, and so many
// sockets; 0: any number.
func New(budget, grpc *shares.Budget, agentMemory, routes int64, sockets int) *Limits {
	pool := func(most int64) *shares.Pool { return shares.NewPool(cmp.Or(most, unbounded)) }
	l := &Limits{Agents: pool(agentMemory), routes: pool(routes), turns: newTurns()}
	l.own = l.newTenant("", parts{pool(maxDials), pool(maxDials), budget, grpc, pool(int64(sockets))})
	return l
}

// Own returns the part of the server's own cluster. Without tenants, that is all.
func (l *Limits) Own() *Tenant { return l.own }

// PendingDials returns how many dials of all clients are under way, or wait for their turn.
func (l *Limits) PendingDials() int64 { return l.own.parts.dials.Used() + l.own.parts.resumes.Used() }

// Tenant returns the part of one more tenant. All is divided among tenants first, so
// that a tenant with many clients has no more than others.
func (l *Limits) Tenant(name string) *Tenant {
	all := l.own.parts
	return l.newTenant(name, parts{all.dials.Share(), all.resumes.Share(), all.budget.Divided(), all.grpc.Divided(), all.sockets.Share()})
}

func (l *Limits) newTenant(name string, has parts) *Tenant {
	return &Tenant{name: name, parts: has, Agents: l.Agents.Share(), Routes: l.routes.Share(), turns: l.turns}
}
