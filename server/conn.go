package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync/atomic"

	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// conn is a connection that a cluster has admitted: of a tenant each, of the server's own
// those with a certificate.
type conn struct {
	side    side
	local   bool            // by the tenant's own socket, without a certificate
	chain   tlsreload.Certs // as its peer showed it
	recheck recheck         // of the server's own
	cut     context.CancelCauseFunc
	over    atomic.Bool // it was cut
}

// recheck judges a certificate that was verified before; see Listener.Recheck.
type recheck func(chain []*x509.Certificate) error

// Why connections end that are not admitted any more. What a link carries may go on by
// another, for which its peer proves itself anew, unless its certificate was revoked.
var (
	errCut     = &tunnel.ResetError{Code: tunnel.CodePolicy}
	errRevoked = &tunnel.ResetError{Code: tunnel.CodePolicy, Err: tlsreload.ErrRevoked}
)

// wasCut reports whether a connection has ended for one of these.
func wasCut(life context.Context) bool {
	cause := context.Cause(life)
	return cause == errCut || cause == errRevoked
}

// judge says why a connection that was admitted under old would not be under now.
func (c *conn) judge(old, now *tenant.Spec) error {
	if c.local || c.side.cas(now).Same(c.side.cas(old)) {
		return nil
	}
	return c.side.cas(now).Recheck(c.chain.Parse())
}

// handler serves a connection that its cluster has admitted. client is nil where an
// agent is served.
type handler func(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client)

// admitted returns what a frontend calls: next serves a connection of a side once the
// cluster that its handshake led to has admitted it.
func (s *Server) admitted(side side, judge recheck, next handler) frontend.Handler {
	return func(ctx context.Context, c *frontend.Conn) {
		cl := s.own
		admit := func() (life context.Context, release func(), refusal string) { return s.admit(ctx, side, judge, c) }
		if t, ok := c.Owner().(*route); ok {
			cl = t.cluster
			admit = func() (life context.Context, release func(), refusal string) { return t.admit(ctx, side, c) }
		}
		ctx, release, refusal := admit()
		if refusal != "" {
			c.Refuse(refusal)
			return
		}
		c.AtEnd(release)
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

// admit takes a connection to the server's own cluster in until release, or says why not.
// Its life ends early if its certificate is not trusted any more.
func (s *Server) admit(ctx context.Context, side side, judge recheck, from *frontend.Conn) (life context.Context, release func(), refusal string) {
	state := from.TLS()
	if judge == nil || state == nil || len(state.PeerCertificates) == 0 {
		return ctx, func() {}, ""
	}
	c := &conn{side: side, chain: tlsreload.CertsOf(state.PeerCertificates), recheck: judge}
	life, leave := s.own.add(ctx, c)
	if s.unsettled() {
		if err := judge(state.PeerCertificates); err != nil {
			leave()
			return nil, nil, err.Error()
		}
	}
	return life, leave, ""
}

// unsettled reports whether CAs or revocation lists changed so lately that a peer that is
// served now may have been verified by those before.
func (s *Server) unsettled() bool {
	at := s.trustChanged.Load()
	return at != 0 && tunnel.Now() < tunnel.Moment(at)+tunnel.Moment(2*frontend.HandshakeTimeout)
}

func (cl *cluster) add(ctx context.Context, c *conn) (life context.Context, leave func()) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.addLocked(ctx, c)
}

// addLocked adds a connection until leave. Its life ends then, or when it is cut.
func (cl *cluster) addLocked(ctx context.Context, c *conn) (life context.Context, leave func()) {
	life, c.cut = context.WithCancelCause(ctx)
	cl.conns[c] = struct{}{}
	return life, func() {
		c.cut(nil)
		cl.mu.Lock()
		defer cl.mu.Unlock()
		delete(cl.conns, c)
	}
}

// admit takes a connection in until release, or says why not. Its life ends early if
// the tenant does not admit it any more.
func (t *route) admit(ctx context.Context, side side, from *frontend.Conn) (life context.Context, release func(), refusal string) {
	cl := t.cluster
	c := &conn{side: side, local: from.TLS() == nil}
	if state := from.TLS(); state != nil {
		c.chain = tlsreload.CertsOf(state.PeerCertificates)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.state >= draining || cl.spec != t.spec && c.judge(t.spec, cl.spec) != nil {
		return nil, nil, "the tenant was removed, or does not trust its certificate any more"
	}
	room := cl.room[side]
	if !room.Take(1) {
		return nil, nil, fmt.Sprintf("the share of the tenant %s is used up: it has %d connections on the port for %s", cl.name, room.Used(), side)
	}
	life, leave := cl.addLocked(ctx, c)
	cl.left.Add(1)
	return life, func() {
		room.Give(1)
		leave()
		cl.left.Done()
	}, ""
}
