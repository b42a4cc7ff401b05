package uplink

import (
	"context"
	"time"
)

const (
	// idleCheck is the longest pause between two looks at a link that is retired:
	// whether another is there to go on by, and whether anything is on it still.
	idleCheck = time.Second

	// firstCheck is the first such pause. Later ones are longer, so that
	// streams that come back, because no other server has their agent, are not
	// moved all the time.
	firstCheck = 50 * time.Millisecond
)

// retire moves the connections of a link that is Leaving or Replaced to others, and
// ends it once nothing is on it and another is up. It returns when ctx ends, or the
// link.
func (s *Server) retire(ctx context.Context, of session) {
	l, linked := of.(*linkSession)
	if !linked {
		_ = of.Close()
		return
	}
	pause := firstCheck
	for {
		s.opt.Leave()
		if s.sessions().resumes(l) {
			for _, lane := range l.Sessions() {
				s.ends.Move(lane)
			}
			pause = min(2*pause, idleCheck)
		}
		if s.emptied(ctx, l, pause) && !s.only(l) {
			break
		}
		if ctx.Err() != nil || !l.alive() {
			return
		}
	}
	_ = l.Close()
}

// emptied waits until nothing is on l and another link is up, for no longer
// than pause, and reports whether nothing is on it.
func (s *Server) emptied(ctx context.Context, l *linkSession, pause time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if l.WaitIdle(ctx) != nil {
		return false
	}
	if s.only(l) {
		select {
		case <-l.Done():
		case <-ctx.Done():
		}
	}
	return true
}

// only reports whether l is the only link that is up.
func (s *Server) only(l *linkSession) bool { return s.sessions().link(l) == nil }
