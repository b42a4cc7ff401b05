package registry

import (
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"konnectivity/tunnel"
)

// returnTime is how long a connection that is resumed waits for its agent, which
// may just be connecting again. Whoever asks comes again, also by other servers,
// so it is short.
const returnTime = 250 * time.Millisecond

// route names an agent to openers that want to resume a connection that it has.
// Every server makes the same one of it. It covers who the agent proved to be,
// so that no other agent of that id is ever told of its connections.
func (a Agent) route() string {
	sum := sha256.Sum256([]byte(a.Identity))
	return string(sum[:8]) + a.ID
}

// resume asks the agent that has a connection to go on with it over this
// server. Agents that share an id and a certificate share a route, so that one
// of them does not know the connection proves nothing while there are others.
func (r *Registry) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	var tried []*conn
	var gone error // what those said that do not know it
	for {
		c, news := r.at(f.Resume.Route, tried)
		if c != nil {
			far, err := r.dialVia(ctx, c, "resume", f)
			failure := tunnel.FailureOf(err)
			switch {
			case failure == tunnel.FailGone:
				gone = err
			case err == nil || !failure.Retryable() || bounded.Err() != nil:
				return far, err
			}
			tried = append(tried, c) // whose link has perhaps just broken; there may be another
			continue
		}
		if gone != nil {
			return nil, gone
		}
		select {
		case <-news:
		case <-bounded.Done():
			return nil, &tunnel.DialError{Failure: tunnel.FailAgentLost, Address: f.Address,
				Reason: "the agent that has the connection is not connected"}
		}
	}
}

// at returns a connection of the agent with that route that was not tried, and
// a channel that is closed when somebody joins. Agents by gRPC are left out:
// they would make a new connection.
func (r *Registry) at(route string, tried []*conn) (found *conn, news <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	g := r.index.routes[route]
	if g == nil {
		return nil, r.wake
	}
	for _, m := range g.members {
		for _, c := range m.conns {
			if c.agent.Via == "grpc" || slices.Contains(tried, c) {
				continue
			}
			if !c.draining {
				return c, r.wake
			}
			found = c
		}
	}
	return found, r.wake
}
