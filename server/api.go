package server

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"

	"konnectivity/server/limits"
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
)

// fromAgent serves what one agent opens on its link.
type fromAgent struct {
	cluster *cluster
	client  *tunnel.Client // nil: the agent takes no part in this
}

// serve has session's streams served, if its agent takes part, until leave. It is called
// before session runs.
func (a *fromAgent) serve(session *link.Session, who limits.Agent) (leave func()) {
	if !session.API() {
		return func() {}
	}
	a.client, leave = a.cluster.limits.JoinAgent(who)
	session.Charge(a.client.Budget)
	return leave
}

// Forward implements tunnel.Handler. Nothing that the agent says chooses a destination.
func (a *fromAgent) Forward(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer) error {
	cl := a.cluster
	if a.client == nil || f.Network != link.NetworkAPI {
		cl.server.metrics.APIRefused(refusedOther)
		cl.log.WithField("network", f.Network).Warn("an agent asked for something other than its API server and was refused")
		err := &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "agents may ask for their API server alone"}
		_, _ = answer(nil, err)
		return err
	}
	f.Client, f.Front, f.Network, f.Address = a.client, frontAPI, "tcp", link.APIAddress
	return cl.api.Forward(ctx, f, answer)
}

// newAPIDialer is how the cluster's agents reach its API server.
func (cl *cluster) newAPIDialer() *dialer {
	return &dialer{cluster: cl, permit: cl.permitAPI, next: tunnel.DialerFunc(cl.dialAPI)}
}

// permitAPI is an error unless an API server is named for the cluster.
func (cl *cluster) permitAPI(f *tunnel.Flow) error {
	if len(cl.config.Load().api) == 0 {
		cl.server.metrics.APIRefused(refusedUnset)
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
			Reason: "no API server is named on the server for this cluster: --api-server, or apiServers of the tenant"}
	}
	if f.Resume.Again() {
		return &tunnel.DialError{Failure: tunnel.FailGone, Address: f.Address} // it was plain
	}
	return nil
}

// dialAPI connects to one of the cluster's API servers; clusters of several spread.
func (cl *cluster) dialAPI(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if err := limits.TakeSocket(f); err != nil {
		return nil, err
	}
	servers := slices.Clone(cl.config.Load().api)
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	far, _, err := race.All(ctx, servers, dialTCP, func(c tunnel.Conn) { _ = c.Close() })
	if err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	f.Resolved = far.RemoteAddr().String()
	return far, nil
}

func dialTCP(ctx context.Context, address string) (tunnel.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}
