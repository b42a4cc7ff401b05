package server

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"konnectivity/internal/version"
	"konnectivity/server/frontend"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// linkWeight is what a link costs before its HELLO, for which it allocates as
// much as the frame's header announces: 16 KiB.
const linkWeight = 32 << 10

// linkConfig is what all of the server's links have in common; each has a Budget
// and a Log besides.
func (s *Server) linkConfig() link.Config {
	features := append(s.own.ends.Features(), link.FeatureLanes)
	if s.peering != nil {
		features = append(features, link.FeatureForward)
	}
	return link.Config{
		Hello: link.Hello{
			Role: link.RoleServer, Software: "konnectivity-server " + version.Get().Version,
			ID: s.opts.ID, ServerCount: s.serverCount(),
			Features: features,
		},
	}
}

// linkConfig is for a link of the cluster, whose requests next serves. A keepalive applies if it
// is quicker than the link's own. A slower one is meant for gRPC; links notice a dead peer within
// 20 s in any case.
func (cl *cluster) linkConfig(next tunnel.Handler, budget *link.Budget, keepalive time.Duration, features ...string) link.Config {
	cfg := cl.server.linkConfig()
	cfg.Hello.Features = append(cfg.Hello.Features, features...)
	cfg.Handler = resume.Splice(next)
	cfg.Budget = budget
	cfg.Hold = cl.held()
	cfg.Log = cl.log
	if keepalive > 0 && keepalive < link.DefaultPingInterval {
		cfg.PingInterval = keepalive
		cfg.DeadAfter = keepalive + keepaliveTimeout
	}
	return cfg
}

// chosen is a Handler that has another one serve each request, or refuses it.
type chosen func(f *tunnel.Flow) (tunnel.Handler, error)

// Serve implements tunnel.Handler.
func (c chosen) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	next, err := c(f)
	if err != nil {
		_, _ = answer(nil, err)
		ended(err)
		return
	}
	next.Serve(ctx, f, answer, ended)
}

// meetLink makes a connection a link, which serveLink is to serve; nil if that came
// to nothing.
func (s *Server) meetLink(ctx context.Context, c *frontend.Conn, cfg link.Config) *link.Session {
	c.Weigh(linkWeight)
	c.Allow(link.HandshakeTimeout + time.Second) // for the link to say goodbye to a peer that is late
	verify := cfg.Verify
	cfg.Verify = func(ctx context.Context, peer link.Hello) error {
		err := cmp.Or(verify(ctx, peer), peer.CheckID()) // which link checks too, but after Begin
		if err != nil {
			c.Deny()
			return err
		}
		if !c.Begin() {
			return errNoRoom
		}
		return nil
	}
	session, err := link.Meet(ctx, c.Whole(), cfg)
	if err != nil {
		cfg.Log.WithError(err).WithField("remote", c.RemoteAddr().String()).Debug("a link was not made")
		if wasCut(ctx) {
			c.Deny()
		} else {
			c.Fail(err)
		}
		return nil
	}
	return session
}

// serveLink serves a link on this goroutine until it has ended, or ctx has, or, once
// drains has, it carries nothing; nil: it does not drain. Either way leave is called then,
// which is to end the link: what the link still runs may take its time.
func serveLink(ctx, drains context.Context, session *link.Session, leave func()) {
	var left atomic.Bool
	end := func() { // sync.OnceFunc would have a second call wait for the first one
		if !left.Swap(true) {
			leave()
		}
	}
	cut := tunnel.After(ctx, func() {
		if context.Cause(ctx) == errRevoked {
			session.Bar(errRevoked.Code) // else what it carries could go on by another link
		}
		end()
	})
	idle := func() {}
	if drains != nil {
		idle = tunnel.After(drains, func() {
			_ = session.WaitIdle(context.Background()) // which Server.Run's grace period bounds
			end()
		})
	}
	session.Run()
	end()
	idle() // joins who ends it otherwise
	cut()
}

// closeLink ends a link, with the reason if it is the server that goes.
func (s *Server) closeLink(session *link.Session) {
	if s.drains.Err() != nil {
		_ = session.CloseWith(link.GoAwayShutdown, "the server is shutting down")
		return
	}
	_ = session.Close()
}
