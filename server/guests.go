package server

import (
	"context"
	"crypto/x509"
	"fmt"

	"konnectivity/server/frontend"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel"
)

// side is who a port is for.
type side int

const (
	agents side = iota
	clients
	sides
)

func (s side) String() string { return [sides]string{"agents", "clients"}[s] }

// cas are the CAs that a tenant's peers on one side must be of; nil: of none.
func (s side) cas(t *tenancy.Tenant) *tenancy.CAs {
	if s == agents {
		return t.Agents
	}
	return t.Clients
}

// issuers find the tenants of those peers on that side who are told by certificate;
// nil: none is.
func (s side) issuers(table *tenancy.Table) *tenancy.Issuers {
	if s == agents {
		return table.AgentsBy()
	}
	return table.ClientsBy()
}

// guest is a connection of a tenant.
type guest struct {
	side  side
	local bool                // by the tenant's own socket, where nobody shows a certificate
	chain []*x509.Certificate // as its peer showed it
	cut   context.CancelCauseFunc
}

// errCut is why connections end whose tenant does not admit them any more.
var errCut = &tunnel.ResetError{Code: tunnel.CodeShutdown}

// hosted makes next serve a connection for the tenant that it belongs to.
func (s *Server) hosted(next frontend.Handler) frontend.Handler {
	if s.tenants == nil {
		return next
	}
	return func(ctx context.Context, c *frontend.Conn) {
		h, ok := c.Owner().(*host)
		if !ok {
			next(ctx, c)
			return
		}
		life, leave, refusal := h.enter(ctx, c)
		if refusal != "" {
			c.Refuse(refusal)
			return
		}
		c.AtEnd(leave)
		next(life, c)
	}
}

// enter takes a connection in until leave, or says why not; its life ends earlier
// if the tenant does not admit it any more.
func (h *host) enter(ctx context.Context, c *frontend.Conn) (life context.Context, leave func(), refusal string) {
	cl := h.cluster
	g := &guest{side: h.sideOf(c), local: c.TLS() == nil}
	if state := c.TLS(); state != nil {
		g.chain = state.PeerCertificates
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.over || cl.tenant != h.tenant && !g.trusted(h.tenant, cl.tenant) {
		return nil, nil, "the tenant was removed, or does not trust its certificate any more"
	}
	place := cl.places[g.side]
	if !place.Take(1) {
		return nil, nil, fmt.Sprintf("the share of the tenant %s is used up: it has %d connections on the port for %s", cl.name, place.Used(), g.side)
	}
	life, g.cut = context.WithCancelCause(ctx)
	cl.guests[g] = struct{}{}
	cl.left.Add(1)
	return life, func() {
		g.cut(nil)
		place.Give(1)
		cl.mu.Lock()
		delete(cl.guests, g)
		cl.mu.Unlock()
		cl.left.Done()
	}, ""
}

// stay has end wait until left is told; false: the cluster is over.
func (cl *cluster) stay() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.over {
		return false
	}
	cl.left.Add(1)
	return true
}

// trusted says whether a guest who was let in under old is one under now.
func (g *guest) trusted(old, now *tenancy.Tenant) bool {
	return g.local || g.side.cas(now).Same(g.side.cas(old)) || g.side.cas(now).Trust(g.chain)
}

// change puts a tenant as it is now into force, and cuts exactly those who would
// not be let in any more: whose certificates no CA of it has issued, and agents
// whose tokens somebody else has judged.
func (cl *cluster) change(now *tenancy.Tenant, next *terms) {
	cl.agents.SetStrategies(cl.server.strategiesOf(now))
	cl.peers.tellServing(cl.serving)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	old := cl.tenant
	cl.tenant = now
	was := cl.terms.Swap(next)
	if was.stop != nil && was.gate.Tokens != next.gate.Tokens {
		was.stop()
	}
	others := !now.Tokens.Same(old.Tokens) || old.Agents != nil && now.Agents == nil
	count := 0
	for g := range cl.guests {
		if g.side == agents && others || !g.trusted(old, now) {
			g.cut(errCut)
			count++
		}
	}
	if count > 0 {
		cl.log.WithField("connections", count).Info("connections were cut that the tenant does not admit any more")
	}
}

// end cuts all and returns when nothing of the cluster is left.
func (cl *cluster) end() {
	cl.mu.Lock()
	cl.over = true
	for g := range cl.guests {
		g.cut(errCut)
	}
	if stop := cl.terms.Load().stop; stop != nil {
		stop()
	}
	cl.mu.Unlock()
	cl.left.Wait()
	cl.ends.Close()
	cl.ends.Wait()
}
