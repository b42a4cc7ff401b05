package server

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"konnectivity/internal/admin"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// buildClients makes what serves requests by gRPC.
func (s *Server) buildClients() {
	if s.opts.NoGRPC {
		return
	}
	service := legacy.NewProxyService(streams{}, legacy.ProxyServiceConfig{
		Admit: admitStream, Received: received, Limits: s.grpc, Metrics: s.metrics, LogOf: logOfStream,
	})
	s.byGRPC[clients] = newGRPCFront(service, s.opts.ClientKeepalive, grpc.MaxConcurrentStreams(maxStreams), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow))
}

// serveConnect is a client's CONNECT.
func (s *Server) serveConnect(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client) {
	frontend.Connect(func(token string) (tunnel.Handler, error) {
		client, err := cl.proven(ctx, c, client, token)
		return requests{cl.forwarder, client}, err
	}, s.metrics, cl.agents.Ready)(ctx, c)
}

// serveClientLink is a sidecar's link: each stream it opens is a request.
func (s *Server) serveClientLink(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client) {
	session, who := cl.meetClient(ctx, c, client)
	if session == nil {
		return
	}
	if session.Peer().Role == link.RoleAgent {
		cl.serveBeside(ctx, c, who, session)
		return
	}
	leave := cl.joinClient(c, who, session)
	c.Go(func() { serveLink(ctx, s.drains, session, leave) })
}

// meetClient makes a sidecar's connection a link, nil if that came to nothing. client is
// whom its certificate shows it to be; by a token, it may turn out to be another. What the
// link leaves unread is the former's.
func (cl *cluster) meetClient(ctx context.Context, c *frontend.Conn, client *tunnel.Client) (*link.Session, tunnel.Identity) {
	s := cl.server
	asks := &requests{cl.forwarder, client} // Verify may find another client
	cfg := cl.linkConfig(s.metrics.countRequests(asks), client.Budget, s.opts.ClientKeepalive, cl.apiFeatures()...)
	cfg.Hello.Serving = cl.serving()
	cfg.Verify = func(ctx context.Context, peer link.Hello) (err error) {
		if asks.client, err = cl.proven(ctx, c, client, peer.Token); err != nil {
			return err
		}
		if err := cl.judgeClient(peer); err != nil {
			return err
		}
		if peer.Role == link.RoleAgent && byToken(c) {
			return errors.New("an agent beside the API server needs a certificate")
		}
		if !client.Budget.Take(limits.ClientMemory) {
			return errors.New(limits.NoMemory(client))
		}
		c.AtEnd(func() { client.Budget.Give(limits.ClientMemory) })
		return nil
	}
	session := s.meetLink(ctx, c, cfg)
	return session, asks.client.Who
}

// joinClient makes a sidecar's link known, or has it be one of the sidecar's lanes,
// until leave, which ends the link.
func (cl *cluster) joinClient(c *frontend.Conn, who tunnel.Identity, session *link.Session) (leave func()) {
	key := laneKey{session.Peer().Group, session.Peer().ID, cmp.Or(auth.CertDigest(c.TLS()), string(who)), ""}
	lane := &peer{count: session.SetServerCount, serving: session.SetServing}
	return cl.joinLane(clients, admin.RoleClient, key, session, lane, func(g *lanes.Group) func() {
		return cl.peers.join(&peer{
			drain: g.Drain, count: g.SetServerCount, serving: g.SetServing,
			client: sidecarLink{g, c.RemoteAddr().String(), who, time.Now()},
		})
	})
}

// byToken reports whether a client has to prove by a token who it is: it came by TLS and
// showed no certificate.
func byToken(c *frontend.Conn) bool { return c.TLS() != nil && auth.CertOf(c.TLS()) == nil }

// proven returns client or, if it came without a certificate where tokens are accepted, the
// client that its token shows it to be. An error is fit for the peer. It blocks while the
// token is reviewed.
func (cl *cluster) proven(ctx context.Context, c *frontend.Conn, client *tunnel.Client, token string) (*tunnel.Client, error) {
	tokens := cl.server.clientTokens
	if tokens == nil || !byToken(c) {
		return client, nil
	}
	if cl != cl.server.own {
		return client, errors.New("a client of a tenant needs a certificate")
	}
	c.Allow(judgeTimeout + time.Second)
	account, err := tokens.Review(ctx, token, c.RemoteAddr())
	if err != nil {
		withCause(cl.log.WithField("remote", c.RemoteAddr().String()), err).Warn("a client was refused")
		return client, err
	}
	named, leave := cl.limits.Join(tunnel.NewIdentity(account.Identity()), nil, c.RemoteAddr())
	c.AtEnd(leave)
	return named, nil
}

// requests carries what one client asks for.
type requests struct {
	next   tunnel.Handler
	client *tunnel.Client
}

// Serve implements tunnel.Handler.
func (r requests) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	f.Client = r.client
	r.next.Serve(ctx, f, answer, ended)
}
