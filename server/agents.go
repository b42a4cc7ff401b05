package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"konnectivity/internal/admin"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// judgeTimeout bounds the decision on an agent, so that one is told to come
// again rather than kept waiting while the API server is slow.
const judgeTimeout = 15 * time.Second

// buildAgents makes what serves agents by gRPC.
func (s *Server) buildAgents() {
	if s.opts.AgentsNeedLink {
		return
	}
	service := legacy.NewAgentService(legacy.AgentServiceConfig{
		ServerID: s.opts.ID, ServerCount: s.serverCount, Accept: s.acceptAgent,
		Limits: s.grpc, Metrics: s.metrics, LogOf: logOfStream,
	})
	s.byGRPC[agents] = newGRPCFront(service, s.opts.Keepalive, grpc.MaxConcurrentStreams(maxAgentStreams), grpc.MaxRecvMsgSize(maxAgentMessage), grpc.StreamInterceptor(judgeStream))
}

// acceptAgent decides on an agent that came by gRPC.
func (s *Server) acceptAgent(ctx context.Context, p *legacy.AgentPeer) (leave func(), err error) {
	h := handedOf(ctx)
	who := auth.Peer{ID: p.ID(), Identifiers: p.Identifiers(), Token: p.Token(), TLS: p.TLS(), Remote: p.RemoteAddr()}
	agent, give, err := h.cluster.judgeAgent(ctx, h.life, who, registry.ViaGRPC)
	if err != nil {
		h.denied.Store(true)
		return nil, err
	}
	if !h.from.Begin() {
		give()
		return nil, errNoRoom
	}
	leaveAll := h.cluster.join(h.life, h.cluster.agents, agent, p, &peer{drain: p.Drain})
	return func() {
		leaveAll()
		give()
	}, nil
}

// serveAgentLink is an agent's link from its handshake to its end.
func (s *Server) serveAgentLink(ctx context.Context, c *frontend.Conn, cl *cluster, _ *tunnel.Client) {
	from := &fromAgent{cluster: cl}
	session, agent := cl.meetAgent(ctx, c, from)
	if session == nil {
		return
	}
	c.AtEnd(from.serve(session, c, agent.ID))
	leave := cl.joinAgent(ctx, agents, cl.agents, agent, session)
	c.Go(func() { serveLink(ctx, nil, session, leave) })
}

// meetAgent makes an agent's connection a link, whose requests from serves; nil if that
// came to nothing.
func (cl *cluster) meetAgent(ctx context.Context, c *frontend.Conn, from *fromAgent) (session *link.Session, agent registry.Agent) {
	cfg := cl.linkConfig(chosen(from.handler), cl.limits.Budget(), cl.server.opts.Keepalive, link.FeatureIdentity, link.FeatureRules, link.FeatureAPI)
	cfg.Verify = func(judging context.Context, p link.Hello) (err error) {
		if p.Role != link.RoleAgent {
			return fmt.Errorf("this port is for agents, not for %ss", p.Role)
		}
		if p.BesideAPIServer() {
			return errors.New("this port is for nodes' agents: one with --api-server connects to the port for clients")
		}
		who := auth.Peer{ID: p.ID, Identifiers: p.Identifiers, Token: p.Token, TLS: c.TLS(), Remote: c.RemoteAddr()}
		var give func()
		agent, give, err = cl.judgeAgent(judging, ctx, who, registry.ViaLink)
		c.AtEnd(give)
		return err
	}
	session = cl.server.meetLink(ctx, c, cfg)
	return session, agent
}

// joinAgent makes an agent's link known to a registry, or has it be one of the agent's
// lanes, until leave, which ends the link. at is the side by whose port it came.
func (cl *cluster) joinAgent(life context.Context, at side, of *registry.Registry, agent registry.Agent, session *link.Session) (leave func()) {
	key := laneKey{session.Peer().Group, agent.ID, agent.Cert, session.Peer().Identifiers}
	return cl.joinLane(at, admin.RoleAgent, key, session, &peer{count: session.SetServerCount}, func(g *lanes.Group) func() {
		cl.server.metrics.agentLink(1)
		leave := cl.join(life, of, agent, g, &peer{drain: g.Drain, count: g.SetServerCount})
		return func() {
			leave()
			cl.server.metrics.agentLink(-1)
		}
	})
}

var errNoAgentRoom = &auth.Refusal{
	Code: codes.Unavailable, Reason: "the server has no memory for more agents of this cluster: they may take half of its memory limit, divided among clusters",
}

var errNoRoutes = &auth.Refusal{
	Code: codes.Unavailable, Reason: fmt.Sprintf("the server has no room for more identifiers of this cluster's agents: it can tell other servers of %d, divided among clusters", maxTold),
}

// errChanged is why an agent is refused that was judged by what no longer holds.
var errChanged = &auth.Refusal{Code: codes.Unavailable, Reason: "what the server admits has changed while it judged this agent; come again"}

// judgeAgent asks the gate, and logs and counts a refusal. life is that of the agent's
// connection, which may be cut while the gate thinks. give must be called when the
// connection has ended; after an error, it does nothing.
func (cl *cluster) judgeAgent(ctx, life context.Context, who auth.Peer, via registry.Via) (agent registry.Agent, give func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
	defer cancel()
	agent = registry.Agent{ID: who.ID, Cert: auth.CertDigest(who.TLS), Who: cl.gate().Who(who.TLS), Via: via}
	if who.Remote != nil {
		agent.Remote = who.Remote.String()
	}
	ids, err := cl.gate().Admit(ctx, who)
	if err == nil && wasCut(life) {
		err = errChanged
	}
	if err == nil {
		give, err = cl.takeAgent(ids.Len(), limits.CertMemory(who.TLS)+extraMetadata(ctx))
	}
	if err != nil {
		cl.server.metrics.agentRefused(label(err))
		cl.traffic.refused.Add(1)
		withCause(cl.log.WithFields(agentFields(agent)), err).Warn("an agent was refused")
		return agent, func() {}, err
	}
	agent.Identifiers = ids
	return agent, give, nil
}

// withCause adds to a line why a peer was refused, and the cause that the peer is not told, if
// there is one.
func withCause(log *logrus.Entry, err error) *logrus.Entry {
	log = log.WithError(err)
	if cause := errors.Unwrap(err); cause != nil {
		log = log.WithField("cause", cause)
	}
	return log
}

// takeAgent takes what an agent with so many identifiers needs, until give.
func (cl *cluster) takeAgent(identifiers, extra int) (give func(), err error) {
	memory, routes := cl.limits.Agents, cl.limits.Routes
	bytes, told := int64(limits.AgentMemory+limits.IdentifierMemory*identifiers+extra), int64(1+identifiers)
	if !memory.Take(bytes) {
		return nil, errNoAgentRoom
	}
	if !routes.Take(told) {
		memory.Give(bytes)
		return nil, errNoRoutes
	}
	return func() {
		routes.Give(told)
		memory.Give(bytes)
	}, nil
}

// label is a refusal as a metric's label.
func label(err error) string {
	if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
		return refusal.Label()
	}
	return "unavailable"
}

func (s *Server) tokenReviewed(took time.Duration, err error) {
	switch {
	case err == nil:
		s.metrics.tokenReviewed("accepted", took)
	case label(err) == "unavailable":
		s.metrics.tokenReviewed("unavailable", took)
	default:
		s.metrics.tokenReviewed("refused", took)
	}
}

// join registers an admitted agent, whose connection has this life, until leave. Of several
// connections of an agent at a time, the first and the last to end are logged: agents make
// more to find out whether a load balancer leads them to another server, and drop them
// otherwise.
func (cl *cluster) join(life context.Context, of *registry.Registry, agent registry.Agent, backend registry.Backend, who *peer) (leave func()) {
	joined := of.Join(agent, backend)
	cl.peers.tellServing(cl.serving)
	leavePeers := cl.peers.join(who)
	cl.logAgent(agent, joined.First, "agent connected", nil)
	since := time.Now()
	return func() {
		why := cl.whyGone(life, backend)
		if agent.Via == registry.ViaLink && lost(why) {
			cl.server.metrics.agentLinkLost()
		}
		leavePeers()
		last := joined.Leave()
		cl.peers.tellServing(cl.serving)
		cl.logAgent(agent, last, "agent gone", why)
		if last {
			gone := admin.Departure{Tenant: cl.name, Role: admin.RoleAgent, ID: agent.ID, Remote: agent.Remote}
			cl.server.table.Gone(gone, since, why)
		}
	}
}

// logAgent logs what an agent has done; it is news if no other connection of the agent is
// there. The line's fields are not kept meanwhile: they take as much as all else of an agent
// here. why is the loss that ended its connection, or nil.
func (cl *cluster) logAgent(agent registry.Agent, news bool, what string, why error) {
	log := cl.log.WithFields(agentFields(agent))
	if cause := tunnel.LossOf(why); cause != tunnel.LossUnknown {
		log = log.WithField("cause", cause.Label())
	}
	level := logrus.DebugLevel
	if news {
		level = logrus.InfoLevel
	}
	log.Log(level, what)
}

// whyGone returns why an agent's connection ended; nil if either side wanted the end. One
// that has an error is about to end, which it waits for.
// Of several lanes, life is that of the first, which may have ended long ago. So a
// backend that is still up counts as cut.
func (cl *cluster) whyGone(life context.Context, b registry.Backend) error {
	if b.Err() != nil {
		<-b.Ends().Done()
	}
	if wasCut(life) || !b.Ends().Happened() {
		return nil
	}
	if b.Drains().Happened() || cl.server.drains.Err() != nil {
		return nil
	}
	return cmp.Or(b.Err(), io.EOF) // over gRPC an end in order tells no more
}

// lost says whether a connection ended against the will of both sides: a peer
// that goes, or that is connected already, says so.
func lost(err error) bool {
	var bye *link.GoAwayError
	return err != nil && !errors.As(err, &bye)
}

// agentFields identifies an agent in the log, with at most 100 bytes of its id.
func agentFields(a registry.Agent) logrus.Fields {
	return logrus.Fields{"agent": fmt.Sprintf("%.100s", a.ID), "via": a.Via, "remote": a.Remote}
}
