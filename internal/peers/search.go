package peers

import (
	"context"
	"time"

	"konnectivity/internal/wait"
)

// maxReplaced is how many sessions that were replaced may be there still, because
// the connections on them cannot go on by another, before there is no further search.
const maxReplaced = 4

// Search looks for a server that has agents, if every server that is connected says
// that it has none, and servers tell of more than are connected. A caller that
// is about to use an Agentless session asks for it. It does not block.
func (s *Set[A, S]) Search() { wait.Signal(s.wanted) }

// search connects to the address of a session that another may do better than: a
// load balancer behind it may lead to another server this time.
func (s *Set[A, S]) search(now time.Time) {
	old := s.toReplace()
	if old == nil || !s.searches.begin(now) {
		return
	}
	s.background(func() func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.ConnectTimeout)
		defer cancel()
		session, err := s.cfg.Replace(ctx, old.Address)
		return func() {
			s.searches.end(time.Now())
			if err == nil {
				s.found(old, session)
			}
		}
	})
}

// found has a session take the place of another if its server has agents.
func (s *Set[A, S]) found(old *member[A, S], session S) {
	if !s.cfg.Serves(session) || !old.State().Stays() {
		s.helpers.Go(func() { _ = session.Close() })
		return
	}
	s.join(old.Address, session)
	s.replaced(old)
}

// toReplace is the session with the fewest streams, if all that stay are to servers
// without agents and there are servers that no session is to; else nil.
func (s *Set[A, S]) toReplace() (best *member[A, S]) {
	connected, there, replaced := map[string]bool{}, 0, 0
	for _, m := range s.members {
		switch m.State() {
		case Up:
			return nil
		case Replaced:
			replaced++
		case Agentless:
			connected[s.cfg.Server(m.Session)] = true
			there = max(there, m.Session.ServerCount())
			if best == nil || m.Session.Streams() < best.Session.Streams() {
				best = m
			}
		}
	}
	if len(connected) >= there || replaced >= maxReplaced {
		return nil
	}
	return best
}

// searchPace says when to search: with growing pauses while one loss of all agents
// lasts.
type searchPace struct {
	initial, pause Backoff
	next           time.Time // no search before
	under          bool      // one is under way
}

// begin reports whether to search now; if so, the caller calls end.
func (p *searchPace) begin(now time.Time) bool {
	if p.under || now.Before(p.next) {
		return false
	}
	if now.Sub(p.next) >= p.initial.Limit { // the last search was for another loss
		p.pause = p.initial
	}
	p.under = true
	return true
}

func (p *searchPace) end(now time.Time) {
	p.under, p.next = false, now.Add(p.pause.Failure())
}
