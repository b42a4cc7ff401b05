package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"konnectivity/internal/admin"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/registry"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// admitTimeout bounds the decision on an agent, so that one is told to come
// again rather than kept waiting while the API server is slow.
const admitTimeout = 15 * time.Second

// buildAgents makes the side that reaches destinations.
func (s *Server) buildAgents() (err error) {
	if !s.opts.AgentsNeedLink {
		s.agentService, err = legacy.NewAgentService(legacy.AgentServiceConfig{
			ServerID: s.opts.ID, ServerCount: s.serverCount, Accept: s.acceptAgent,
			Limits: s.limits, Metrics: s.metrics, Log: s.opts.Log,
		})
		if err != nil {
			return err
		}
		s.agentGRPC = newGRPCFront(s.opts.Keepalive, grpc.MaxConcurrentStreams(maxAgentStreams), grpc.StreamInterceptor(judgeStream))
		s.agentService.Register(s.agentGRPC.server)
	}
	for _, l := range s.opts.Agents {
		cfg := s.frontConfig("agents", l)
		if s.agentGRPC != nil {
			cfg.GRPC = s.agentGRPC.handle
		}
		if !s.opts.NoLink {
			cfg.Link = s.serveAgentLink
		}
		front, err := frontend.New(cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", l.Addr(), err)
		}
		s.agentFronts = append(s.agentFronts, front)
	}
	return nil
}

// acceptAgent decides on an agent that came by gRPC.
func (s *Server) acceptAgent(ctx context.Context, p *legacy.AgentPeer) (leave func(), err error) {
	who := auth.Peer{ID: p.ID(), Identifiers: p.Identifiers(), Token: p.Token(), TLS: p.TLS(), Remote: p.RemoteAddr()}
	agent, err := s.admit(ctx, who, "grpc")
	if err == nil {
		err = prove(ctx)
	}
	if err != nil {
		return nil, err
	}
	return s.join(agent, p, &peer{drain: p.Drain}), nil
}

// serveAgentLink is an agent's link from its handshake to its end.
func (s *Server) serveAgentLink(ctx context.Context, c *frontend.Conn) {
	var agent registry.Agent
	cfg := s.linkConfig()
	setLiveness(&cfg, s.opts.Keepalive)
	cfg.Verify = func(ctx context.Context, p link.Hello) (err error) {
		if p.Role != link.RoleAgent {
			return fmt.Errorf("this port is for agents, not for %ss", p.Role)
		}
		who := auth.Peer{ID: p.ID, Identifiers: p.Identifiers, Token: p.Token, TLS: c.TLS(), Remote: c.RemoteAddr()}
		agent, err = s.admit(ctx, who, "link")
		return err
	}
	session := s.acceptLink(ctx, c, cfg)
	if session == nil {
		return
	}
	defer s.closeLink(session)
	s.metrics.AgentLink(1)
	defer s.metrics.AgentLink(-1)
	leave := s.join(agent, session, &peer{drain: session.Drain, count: session.SetServerCount})
	defer leave()
	select {
	case <-session.Done():
		if lost(s.whyGone(session)) {
			s.metrics.AgentLinkLost()
		}
	case <-ctx.Done():
	}
}

// admit asks the gate, and logs and counts a refusal.
func (s *Server) admit(ctx context.Context, who auth.Peer, via string) (registry.Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	agent := registry.Agent{ID: who.ID, Identity: auth.Identity(who.TLS), Via: via}
	if who.Remote != nil {
		agent.Remote = who.Remote.String()
	}
	ids, err := s.gate.Admit(ctx, who)
	if err != nil {
		s.metrics.AgentRefused(label(err))
		s.opts.Log.WithFields(agentFields(agent)).WithFields(logrus.Fields{"error": err.Error(), "cause": errors.Unwrap(err)}).Warn("an agent was refused")
		return agent, err
	}
	agent.Identifiers = ids
	return agent, nil
}

// label is a refusal as a metric's label.
func label(err error) string {
	var refusal *auth.Refusal
	if errors.As(err, &refusal) {
		return refusal.Label()
	}
	return "unavailable"
}

func (s *Server) tokenReviewed(took time.Duration, err error) {
	switch {
	case err == nil:
		s.metrics.TokenReviewed("accepted", took)
	case label(err) == "unavailable":
		s.metrics.TokenReviewed("unavailable", took)
	default:
		s.metrics.TokenReviewed("refused", took)
	}
}

// join makes an admitted agent known to whoever dials, until leave. A second
// connection of a known agent is no news: agents make one to see whether a load
// balancer leads them to another server, and drop it when it does not.
func (s *Server) join(agent registry.Agent, backend registry.Backend, who *peer) (leave func()) {
	log := s.opts.Log.WithFields(agentFields(agent)).Info
	if s.agents.Knows(agent.ID) {
		log = s.opts.Log.WithFields(agentFields(agent)).Debug
	}
	leaveRegistry := s.agents.Join(agent, backend)
	s.peers.tellServing(s.serving)
	leavePeers := s.peers.join(who)
	log("agent connected")
	since := time.Now()
	return func() {
		leavePeers()
		leaveRegistry()
		s.peers.tellServing(s.serving)
		log("agent gone")
		if !s.agents.Knows(agent.ID) {
			s.table.Gone(admin.RoleAgent, agent.ID, agent.Remote, since, s.whyGone(backend))
		}
	}
}

// whyGone is why an agent's connection ended; nil if either side wanted it.
func (s *Server) whyGone(b registry.Backend) error {
	for _, wanted := range []<-chan struct{}{b.Draining(), s.draining} {
		select {
		case <-wanted:
			return nil
		default:
		}
	}
	if with, ok := b.(interface{ Err() error }); ok && with.Err() != nil {
		return with.Err()
	}
	return io.EOF // over gRPC there is no more to know
}

// lost says whether a connection ended against the will of both sides: a peer
// that goes, or that is connected already, says so.
func lost(err error) bool {
	var bye *link.GoAwayError
	return err != nil && !errors.As(err, &bye)
}

// agentFields names an agent in the log, as much of it as is fit for a line.
func agentFields(a registry.Agent) logrus.Fields {
	return logrus.Fields{"agent": fmt.Sprintf("%.100s", a.ID), "via": a.Via, "remote": a.Remote}
}
