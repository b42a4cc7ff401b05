package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"

	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
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

// entrance lets connections to the ports of one side into the clusters that they are for.
type entrance struct {
	server *Server
	side   side
	judge  recheck // of the server's own; nil: they stay
}

// to returns what a frontend calls: next serves a connection once it has entered.
func (e entrance) to(next handler) frontend.Handler {
	return func(ctx context.Context, c *frontend.Conn) {
		ctx, cl, ok := e.enter(ctx, c)
		if !ok {
			return
		}
		if e.side == agents {
			next(ctx, c, cl, nil)
			return
		}
		client, leave := cl.limits.Join(identityOf(c), c.TLS(), c.RemoteAddr())
		c.AtEnd(leave)
		if extra := limits.CertMemory(c.TLS()); extra > 0 {
			if !client.Budget.Take(extra) {
				c.NoRoom(limits.NoMemory(client))
				return
			}
			c.AtEnd(func() { client.Budget.Give(extra) })
		}
		next(ctx, c, cl, client)
	}
}

// enter takes a connection into the cluster that its handshake has led to, until its end;
// false: it was refused. Its life ends early if the cluster would not take it any more.
func (e entrance) enter(ctx context.Context, from *frontend.Conn) (life context.Context, cl *cluster, ok bool) {
	var chain []*x509.Certificate
	if state := from.TLS(); state != nil {
		chain = state.PeerCertificates
	}
	cl, spec := e.server.own, (*tenant.Spec)(nil)
	if t, led := from.Owner().(*route); led {
		cl, spec = t.cluster, t.spec
	} else if e.judge == nil || len(chain) == 0 {
		return ctx, cl, true
	}
	c := &conn{side: e.side, local: from.TLS() == nil, chain: tlsreload.CertsOf(chain), recheck: e.judge}
	life, leave, err := cl.add(ctx, c, spec)
	if err == nil {
		from.AtEnd(leave)
		if spec == nil && e.server.unsettled() {
			err = e.judge(chain)
		}
	}
	switch {
	case errors.Is(err, errUsedUp):
		from.NoRoom(err.Error())
	case err != nil:
		from.Refuse(err.Error())
	}
	return life, cl, err == nil
}

// errUsedUp is in the error of add about a tenant that has as many connections as it may.
var errUsedUp = errors.New("used up")

// identityOf returns the identity that the peer has proved.
func identityOf(c *frontend.Conn) tunnel.Identity {
	if c.TLS() == nil {
		return unixsocket.PeerOf(c.Conn)
	}
	if cert := auth.CertOf(c.TLS()); cert != nil {
		return tenant.IdentityOf(cert)
	}
	return ""
}

// unsettled reports whether CAs or revocation lists changed so lately that a peer that is
// served now may have been verified by those before.
func (s *Server) unsettled() bool {
	at := s.trustChanged.Load()
	return at != 0 && tunnel.Now() < tunnel.Moment(at)+tunnel.Moment(2*frontend.HandshakeTimeout)
}

// add adds a connection until leave, which a handshake has led here by spec; nil: to the
// server's own. Its life ends then, or when it is cut.
func (cl *cluster) add(ctx context.Context, c *conn, spec *tenant.Spec) (life context.Context, leave func(), err error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	var room *shares.Share
	if spec != nil {
		if now := cl.spec(); cl.drains || now != spec && c.judge(spec, now) != nil {
			return nil, nil, errors.New("the tenant was removed, or does not trust its certificate any more")
		}
		if room = cl.room[c.side]; !room.Take(1) {
			return nil, nil, fmt.Errorf("the share of the tenant %s is %w: it has %d connections on the port for %s", cl.name, errUsedUp, room.Used(), c.side)
		}
	}
	life, c.cut = context.WithCancelCause(ctx)
	cl.conns.Set(c, true)
	cl.left.Add(1)
	return life, func() {
		defer cl.left.Done()
		c.cut(nil)
		if room != nil {
			room.Give(1)
		}
		cl.mu.Lock()
		defer cl.mu.Unlock()
		cl.conns.Delete(c)
	}, nil
}
