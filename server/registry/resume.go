package registry

import (
	"context"
	"crypto/sha256"
	"time"

	"konnectivity/tunnel"
)

// returnTime is how long a connection that is resumed waits for its agent, which
// may just be connecting again. Whoever asks comes again, also by other servers,
// so it is short.
const returnTime = 250 * time.Millisecond

// route names an agent to those who want to resume a connection that it has.
// Every server makes the same of it. Who it proved to be is part of it, so that
// no other agent of that id is ever told of its connections.
func (a Agent) route() string {
	sum := sha256.Sum256([]byte(a.Identity))
	return string(sum[:8]) + a.ID
}

// resume has the agent that has a connection go on with it over this server.
func (r *Registry) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	var tried *conn
	for {
		c, news := r.at(f.Resume.Route, tried)
		if c != nil && c.agent.Via == "grpc" { // which would make a new connection
			tried = c
			c, news = r.at(f.Resume.Route, tried)
		}
		if c != nil {
			far, err := r.dialVia(ctx, c, "resume", f)
			if err == nil || !tunnel.FailureOf(err).Elsewhere() || bounded.Err() != nil {
				return far, err
			}
			tried = c // its link has just broken; there may be another
			continue
		}
		select {
		case <-news:
		case <-bounded.Done():
			return nil, &tunnel.DialError{Failure: tunnel.FailAgentLost, Address: f.Address,
				Reason: "the agent that has the connection is not connected"}
		}
	}
}

// at is a connection of the agent with that route, never not, and a channel that
// is closed when somebody joins.
func (r *Registry) at(route string, not *conn) (*conn, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	g := r.index.routes[route]
	if g == nil {
		return nil, r.news
	}
	return g.pick(not, time.Now().UnixNano()), r.news
}
