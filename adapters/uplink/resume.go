package uplink

import (
	"context"

	"konnectivity/tunnel"
	"konnectivity/tunnel/roam"
)

// resume finds another link for a connection that has lost its own. Each link
// is asked once, that of the server to ask first before the others. The caller
// tries again later.
func (s *Server) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if s.pick(nil) == nil {
		s.connectSoon(ctx)
	}
	var tried []*pooled
	err := error(&tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "no link to a server that resumes connections"})
	for l := s.pickFirst(f.Resume.First); l != nil; l = s.pick(tried) {
		s.seek(l)
		tried = append(tried, l)
		if !l.Resumes() {
			continue
		}
		f.Hop = tunnel.Hop{Role: "server", ID: l.Peer().ID}
		var c tunnel.Conn
		if c, err = l.Dial(ctx, f); err == nil || ctx.Err() != nil || !tunnel.FailureOf(err).Elsewhere() {
			return c, err
		}
	}
	return nil, err
}

// pickFirst returns a link to the server with that id, unless it is being left or
// its server says that no agent serves; else the one that pick returns.
func (s *Server) pickFirst(id string) *pooled {
	for _, m := range s.set.Members() {
		if l := m.Session; id != "" && l.Peer().ID == id && l.alive() && !l.isLeaving() && l.Serving().Why == "" {
			return l
		}
	}
	return s.pick(nil)
}

// connectSoon waits for the attempt to connect that is under way, or makes one.
// Whoever calls looks at the links then.
func (s *Server) connectSoon(ctx context.Context) {
	if s.begin() == nil {
		_, _ = s.set.Now(ctx)
	}
}

// resumable says whether connections on l, which is to be left, can go on by
// another link.
func (s *Server) resumable(l *pooled) bool {
	for _, m := range s.set.Members() {
		if other := m.Session; other != l && other.alive() && !other.isLeaving() && other.Resumes() {
			return true
		}
	}
	return false
}

// Ends are the ends of the connections that outlive their links.
func (s *Server) Ends() *roam.Ends { return s.ends }
