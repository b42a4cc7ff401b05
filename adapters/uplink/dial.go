package uplink

import (
	"context"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
)

// maxTries is how many links a request is tried on when they break under
// it before anything was answered.
const maxTries = 3

// dial is Dial for a connection that ends with what carries it.
func (s *Server) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if f.Resume.Again() {
		return s.resume(ctx, f)
	}
	if err := f.CheckTCP(); err != nil {
		return nil, err
	}
	address := f.Address
	var tried []session
	var last error
	lost := false // one try lost its link, whatever later ones say
	for range maxTries {
		way, err := s.way(ctx, tried)
		if err != nil {
			return nil, tunnel.AlsoLost(address, unavailable(address, err), lost)
		}
		if way == nil {
			break
		}
		if len(tried) > 0 {
			f.Resume.Repeat()
		}
		c, err := way.Dial(ctx, f)
		if _, linked := way.(*linkSession); err == nil || ctx.Err() != nil || !linked || !tunnel.Elsewhere(err) {
			return c, err
		}
		tried, last, lost = append(tried, way), err, lost || tunnel.LostInFlight(err)
	}
	return nil, tunnel.AlsoLost(address, last, lost)
}

// way returns the best session that was not tried; where there is none at all, it
// waits for one. It returns nil if every session was tried.
func (s *Server) way(ctx context.Context, tried []session) (session, error) {
	best, state := s.sessions().pick(tried...)
	switch {
	case best == nil && len(tried) > 0 && s.sessions().link() != nil:
		return nil, nil
	case best == nil:
		return s.now(ctx)
	case state == peers.Agentless:
		s.set.Search()
	}
	return best, nil
}

// resume finds another link for a connection that has lost its own. Each link
// is asked once, that of the server to ask first before the others. The caller
// tries again later, unless an agent says that it does not know the connection, and
// no server leads to one that does, or may in a moment: several may have one id.
func (s *Server) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if s.sessions().link() == nil {
		_, _ = s.now(ctx)
	}
	var tried []session
	last := error(&tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "no link to a server that resumes connections"})
	for l := s.sessions().first(f.Resume.First); l != nil; l = s.sessions().link(tried...) {
		if !l.agents() {
			s.set.Search()
		}
		tried = append(tried, l)
		if !l.Resumes() {
			continue
		}
		c, err := l.Dial(ctx, f)
		gone := tunnel.FailureOf(err) == tunnel.FailGone
		if err == nil || ctx.Err() != nil || !gone && !tunnel.FailureOf(err).Retryable() {
			return c, err
		}
		last = tunnel.GoneFirst(last, err)
	}
	return nil, s.set.Final(last)
}
