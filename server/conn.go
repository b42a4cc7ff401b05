package server

import (
	"context"
	"crypto/x509"
	"fmt"

	"konnectivity/internal/unixsocket"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// conn is a connection that a tenant has admitted.
type conn struct {
	side  side
	local bool                // by the tenant's own socket, without a certificate
	chain []*x509.Certificate // as its peer showed it
	cut   context.CancelCauseFunc
}

// errCut is why connections end whose tenant does not admit them any more.
var errCut = &tunnel.ResetError{Code: tunnel.CodeShutdown}

// trusted reports whether a connection that was admitted under old would be under now.
func (c *conn) trusted(old, now *tenant.Spec) bool {
	return c.local || c.side.cas(now).Same(c.side.cas(old)) || c.side.cas(now).Trust(c.chain)
}

// handler serves a connection that its cluster has admitted. client is nil where an
// agent is served.
type handler func(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client)

// admitted returns what a frontend calls: next serves a connection of a side once the
// cluster that its handshake led to has admitted it.
func (s *Server) admitted(side side, next handler) frontend.Handler {
	return func(ctx context.Context, c *frontend.Conn) {
		cl := s.own
		if t, ok := c.Owner().(*route); ok {
			life, release, refusal := t.admit(ctx, side, c)
			if refusal != "" {
				c.Refuse(refusal)
				return
			}
			c.AtEnd(release)
			ctx, cl = life, t.cluster
		}
		if side == agents {
			next(ctx, c, cl, nil)
			return
		}
		client, leave := cl.limits.Join(identityOf(c), c.TLS(), c.RemoteAddr())
		c.AtEnd(leave)
		if extra := limits.CertMemory(c.TLS()); extra > 0 {
			if !client.Budget.Take(extra) {
				c.Refuse(limits.NoMemory(client))
				return
			}
			c.AtEnd(func() { client.Budget.Give(extra) })
		}
		next(ctx, c, cl, client)
	}
}

// identityOf returns the identity that the peer has proved.
func identityOf(c *frontend.Conn) tunnel.Identity {
	switch state := c.TLS(); {
	case state == nil:
		return unixsocket.PeerOf(c.Conn)
	case len(state.PeerCertificates) == 0:
		return ""
	default:
		return tenant.IdentityOf(state.PeerCertificates[0])
	}
}

// admit takes a connection in until release, or says why not. Its life ends early if
// the tenant does not admit it any more.
func (t *route) admit(ctx context.Context, side side, from *frontend.Conn) (life context.Context, release func(), refusal string) {
	cl := t.cluster
	c := &conn{side: side, local: from.TLS() == nil}
	if state := from.TLS(); state != nil {
		c.chain = state.PeerCertificates
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.state >= draining || cl.spec != t.spec && !c.trusted(t.spec, cl.spec) {
		return nil, nil, "the tenant was removed, or does not trust its certificate any more"
	}
	room := cl.room[side]
	if !room.Take(1) {
		return nil, nil, fmt.Sprintf("the share of the tenant %s is used up: it has %d connections on the port for %s", cl.name, room.Used(), side)
	}
	life, c.cut = context.WithCancelCause(ctx)
	cl.conns[c] = struct{}{}
	cl.left.Add(1)
	return life, func() {
		c.cut(nil)
		room.Give(1)
		cl.mu.Lock()
		delete(cl.conns, c)
		cl.mu.Unlock()
		cl.left.Done()
	}, ""
}
