package limits

import (
	"cmp"
	"math"

	"konnectivity/tunnel/link"
	"konnectivity/tunnel/shares"
)

// maxDials bounds the pending dials of all clients together: seven eighths of what
// an agent takes on one link. The rest is for dials that were given up and that the
// agent has not let go of yet. At some 13 KiB each they take 45 MiB.
const maxDials = link.MaxDials / 8 * 7

// Limits are those of a server. Any goroutine may use them.
type Limits struct {
	own    *Tenant
	Agents *shares.Pool // memory of agents' connections; nil: no bound
	routes *shares.Pool // what other servers are told of agents; nil: no bound
	turns  *turns
}

// New returns limits that divide a budget for links, one for gRPC and sockets, of which 0
// means any number, and, where they are not 0, so many bytes for the connections of agents,
// and so many routes of agents that other servers are told of.
func New(budget, grpc *shares.Budget, agentMemory, routes int64, sockets int) *Limits {
	l := &Limits{turns: newTurns()}
	if agentMemory > 0 {
		l.Agents = shares.NewPool(agentMemory)
	}
	if routes > 0 {
		l.routes = shares.NewPool(routes)
	}
	l.own = l.newTenant("", parts{shares.NewPool(maxDials), shares.NewPool(maxDials), budget, grpc, shares.NewPool(cmp.Or(int64(sockets), math.MaxInt32))})
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
	t := &Tenant{name: name, parts: has, turns: l.turns}
	if l.Agents != nil {
		t.agents = l.Agents.Share()
	}
	if l.routes != nil {
		t.routes = l.routes.Share()
	}
	return t
}
