package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

// frontAPI is the front of agents that ask for their cluster's API server
// (docs/link-protocol.md §13).
const frontAPI = "api"

// Why agents' requests are refused, as a metric's label.
const (
	refusedOther = "other" // it asks for something else
	refusedUnset = "unset" // no API server is named for its cluster
	refusedAlone = "alone" // no agent beside the API server is connected
)

// fromAgent serves what one agent opens on its link.
type fromAgent struct {
	cluster *cluster
	client  *tunnel.Client // nil: the agent takes no part in this
}

// serve has session's streams served, if its agent takes part, until leave. It is called
// before session runs.
func (a *fromAgent) serve(session *link.Session, c *frontend.Conn, id string) (leave func()) {
	if !session.API() {
		return func() {}
	}
	a.client, leave = a.cluster.limits.JoinAgent(id, identityOf(c), c.TLS(), c.RemoteAddr())
	session.Charge(a.client.Budget)
	return leave
}

// handler is a chosen. Nothing that the agent says chooses a destination.
func (a *fromAgent) handler(f *tunnel.Flow) (tunnel.Handler, error) {
	cl := a.cluster
	if a.client == nil || f.Network != link.NetworkAPI {
		cl.server.metrics.apiRefused(refusedOther)
		cl.log.WithField("network", f.Network).Warn("an agent asked for something other than its API server and was refused")
		return nil, &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "agents may ask for their API server alone"}
	}
	f.Client, f.Front, f.Address = a.client, frontAPI, link.APIAddress
	return cl.api, nil
}

// apiAgents are a cluster's agents beside its API server. They are in no other registry, so
// that no client's request leads to one of them, and no node's to another agent.
type apiAgents struct {
	*registry.Registry
	warned atomic.Bool // that there is none, since there was one
}

// apiByAgent says that a cluster's API server is dialed by agents beside it.
func apiByAgent(spec *tenant.Spec) bool {
	return slices.Equal(spec.APIServers, []string{tenant.APIByAgent})
}

// apiFeatures are what the port for clients offers to agents beside the API server.
func (cl *cluster) apiFeatures() []string {
	if !apiByAgent(cl.spec()) {
		return nil
	}
	return []string{link.FeatureAPIServer, link.FeatureIdentity}
}

// judgeClient refuses a peer that is neither a client nor an agent beside the API server, and
// such agents where the cluster uses none.
func (cl *cluster) judgeClient(peer link.Hello) error {
	switch {
	case peer.Role == link.RoleClient:
		return nil
	case !peer.BesideAPIServer():
		return fmt.Errorf("this port is for clients, not for %ss", peer.Role)
	case !apiByAgent(cl.spec()):
		return errors.New("this server uses no agents beside the API server: --api-server=agent, or apiServers of the tenant, is not set")
	}
	return auth.CheckID(peer.ID)
}

// serveBeside serves the link of an agent beside the API server. In a drain, nodes have a
// while to go on by another server: where there is none, they do so the sooner this one goes.
func (cl *cluster) serveBeside(ctx context.Context, c *frontend.Conn, who tunnel.Identity, session *link.Session) {
	agent := registry.Agent{ID: session.Peer().ID, Cert: auth.CertDigest(c.TLS()), Who: who, Via: registry.ViaLink, Remote: c.RemoteAddr().String()}
	leave := cl.joinAgent(ctx, clients, cl.beside.Registry, agent, session)
	c.Go(func() {
		life, end := context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(cl.server.drains, func() { time.AfterFunc(leaveTime, end) })()
		serveLink(life, cl.server.drains, session, leave)
	})
}

// newAPIDialer is how the cluster's agents reach its API server.
func (cl *cluster) newAPIDialer() *dialer {
	return &dialer{cluster: cl, bounds: &cl.limits.Nodes, permit: cl.permitAPI, next: tunnel.DialerFunc(cl.dialAPI)}
}

// permitAPI is an error unless an API server is named for the cluster.
func (cl *cluster) permitAPI(f *tunnel.Flow) error {
	switch spec := cl.spec(); {
	case len(spec.APIServers) == 0:
		cl.server.metrics.apiRefused(refusedUnset)
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
			Reason: "no API server is named on the server for this cluster: --api-server, or apiServers of the tenant"}
	case f.Resume.Again() && !apiByAgent(spec):
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
			Reason: "this server dials the API server itself, and resumes no connection to it"}
	}
	return nil
}

// dialAPI connects to one of the cluster's API servers, or has an agent beside it do so.
func (cl *cluster) dialAPI(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	spec := cl.spec()
	if apiByAgent(spec) {
		return cl.dialBeside(ctx, f)
	}
	if err := limits.TakeSocket(f); err != nil {
		return nil, err
	}
	far, _, err := race.Any(ctx, spec.APIServers, dialTCP)
	if err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	f.Resolved = far.RemoteAddr().String()
	return far, nil
}

// dialBeside has an agent beside the API server dial. That there is none is logged once,
// until there has been one.
func (cl *cluster) dialBeside(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	far, err := cl.beside.Dial(ctx, f)
	if tunnel.FailureOf(err) != tunnel.FailNoAgent {
		if err == nil {
			cl.beside.warned.Store(false)
		}
		return far, err
	}
	cl.server.metrics.apiRefused(refusedAlone)
	alone := &tunnel.DialError{Failure: tunnel.FailNoAgent, Address: f.Address,
		Reason: "no agent beside the API server (konnectivity-agent --api-server) is connected to this server for this cluster"}
	if !cl.beside.warned.Swap(true) {
		cl.log.WithError(alone).Warn("nodes do not reach their API server")
	}
	return nil, alone
}

func dialTCP(ctx context.Context, address string) (tunnel.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}
