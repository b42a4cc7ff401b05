package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// returnTime is how long a request to resume waits for the agent, which may just be
// connecting again. It is short, because the opener tries again, also by other servers.
const returnTime = 250 * time.Millisecond

// maxCut bounds the routes whose agents are remembered as cut off: three times the agents of a
// large cluster.
const maxCut = 16384

// route is the agent's name in requests to resume its connections: every server makes the
// same of it. It includes the identity that the agent proved, so that no other agent of
// that id gets such a request.
func (a Agent) route() string {
	sum := sha256.Sum256([]byte(a.Cert))
	return string(sum[:8]) + a.ID
}

// resume asks the agent of f's route to go on with the connection by this server. Agents
// with one id and one certificate share a route: if one of them does not know the
// connection, the next is asked. The connection is gone if none knows it, and lost for now
// where one did not answer, or may be about to come.
func (r *Registry) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	var tried []*conn
	var gone error  // of an agent that does not know the connection
	silent := false // another one, which may know it, was asked in vain
	for {
		c, waited, news := r.holder(f, tried)
		if c != nil {
			far, err := r.dialVia(ctx, c, "resume", f)
			failure := tunnel.FailureOf(err)
			switch {
			case failure == tunnel.FailGone:
				gone = err
			case err == nil || !failure.Retryable() || bounded.Err() != nil:
				return far, err
			default:
				silent = true
			}
			tried = append(tried, c) // its link may just have failed; there may be another
			continue
		}
		if gone == nil && len(tried) == 0 && !waited && r.departed(f.Resume.Route) {
			gone = &tunnel.DialError{Failure: tunnel.FailGone, Address: f.Address,
				Reason: "the agent that had the connection was told to stop, and is gone"}
		}
		if gone != nil && !silent && !waited && !r.awaited(f.Resume.Route) {
			return nil, gone
		}
		select {
		case <-news.own:
		case <-news.far:
		case <-bounded.Done():
			return nil, &tunnel.DialError{Failure: tunnel.FailAgentLost, Address: f.Address,
				Reason: "the agent that has the connection is not connected"}
		}
	}
}

// holder finds an agent with the route of f that is not in tried or, where there is none that
// stays, another server that has one. waited is as for Peers.resume.
func (r *Registry) holder(f *tunnel.Flow, tried []*conn) (c *conn, waited bool, n news) {
	c, leaving, wake := r.at(f.Resume.Route, tried)
	if c != nil && !leaving || f.Origin.Server != "" {
		return c, false, news{own: wake}
	}
	far, waited, wakeFar := r.peers.resume(r.cluster, f.Resume.Route, tried)
	return cmp.Or(far, c), waited, news{wake, wakeFar}
}

// cutOff records how the agents of one route were cut off.
type cutOff struct {
	lives  bool      // one may come back: it had not drained, or fell silent
	gone   bool      // the last one does not, and no other has come since
	beside time.Time // when the last one was cut off that had drained, or while another had its route
}

// cutOffLocked notes that c was cut off. Another agent that has its route, or is about to have
// it since c drained, does not know c's connections.
func (r *Registry) cutOffLocked(c *conn) {
	now, _ := r.cut.Get(c.route)
	now.gone = c.drained() && tunnel.LossOf(c.backend.Err()) != tunnel.LossSilent
	now.lives = now.lives || !now.gone
	if c.drained() || r.index.keyed.Get(routes.OfText(routes.Agent, c.route)).count() > 0 {
		now.beside = time.Now()
	}
	r.cut.Put(c.route, now, resume.MaxWindow)
}

// backLocked notes that an agent of a route has come: that one may lose its link otherwise than
// those before it, as where this server closes it.
func (r *Registry) backLocked(route string) {
	if c, _ := r.cut.Get(route); c.gone {
		c.gone = false
		r.cut.Put(route, c, resume.MaxWindow)
	}
}

// awaited reports whether an agent with that route may be about to come, beside those that are
// here: another one was cut off a moment ago, or this server has just started.
func (r *Registry) awaited(route string) bool {
	if r.starting() {
		return true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	c, _ := r.cut.Get(route)
	return time.Since(c.beside) < tunnel.BackTime
}

// departed reports whether the agents with that route are gone for good: their processes were
// told to stop, and killed before their connections were over, as with a pod that is deleted by
// force. One that runs would be back: it redials at once.
func (r *Registry) departed(route string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c, _ := r.cut.Get(route)
	return c.gone && !c.lives && time.Since(c.beside) >= tunnel.BackTime
}

// at returns a connection of an agent with that route that is not in tried, whether that
// is about to go, and a channel that is closed when another agent joins. Agents by gRPC do
// not count: they would make a new connection.
func (r *Registry) at(route string, tried []*conn) (found *conn, leaving bool, wake <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	g := r.index.keyed.Get(routes.OfText(routes.Agent, route))
	if g == nil {
		return nil, false, r.wake
	}
	for _, m := range g.members.All() {
		for _, c := range m.conns {
			if c.agent.Via == ViaGRPC || slices.Contains(tried, c) {
				continue
			}
			if !c.draining {
				return c, false, r.wake
			}
			found = c
		}
	}
	return found, true, r.wake
}
