package uplink

import (
	"errors"
	"iter"
	"net/netip"
	"slices"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
)

// sessions are those of a Server at one moment, and the choice among them.
type sessions []peers.Member[netip.AddrPort, session]

// pick returns the best session that is not among tried: in the order of the
// package's documentation, and then the one with the fewest streams. nil: there is
// none.
func (ss sessions) pick(tried ...session) (best session, state peers.State) {
	bestRank, bestLoad := peers.Up, 0
	for i := range ss {
		s := ss[i].Session
		if slices.Contains(tried, s) {
			continue
		}
		l, linked := s.(*linkSession)
		if linked && !l.alive() || !linked && tunnel.Closed(s.Done()) {
			continue
		}
		current := ss[i].Standing()
		rank := min(current, peers.Unlisted)
		if !linked {
			rank = peers.Ended // behind all links
		}
		if best != nil && rank > bestRank {
			continue
		}
		if load := s.Streams(); best == nil || rank < bestRank || load < bestLoad {
			best, state, bestRank, bestLoad = s, current, rank, load
		}
	}
	return best, state
}

// links are the links that have not ended, with their states.
func (ss sessions) links() iter.Seq2[*linkSession, peers.State] {
	return func(yield func(*linkSession, peers.State) bool) {
		for i := range ss {
			if l, linked := ss[i].Session.(*linkSession); linked && l.alive() && !yield(l, ss[i].State()) {
				return
			}
		}
	}
}

// first returns a link to the server with that id that is Up; else the best link.
func (ss sessions) first(id string) *linkSession {
	for l, state := range ss.links() {
		if id != "" && state == peers.Up && l.Peer().ID == id {
			return l
		}
	}
	return ss.link()
}

// link is pick among links.
func (ss sessions) link(tried ...session) *linkSession {
	best, _ := ss.pick(tried...)
	l, _ := best.(*linkSession)
	return l
}

// resumes says whether connections on a link that is to be left can go on by
// another.
func (ss sessions) resumes(left *linkSession) bool {
	for l, state := range ss.links() {
		if l != left && state.Stays() && l.Resumes() {
			return true
		}
	}
	return false
}

// stay reports whether there is a link that is kept, and whether there is a server
// without links.
func (ss sessions) stay() (link, connect bool) {
	for i := range ss {
		_, linked := ss[i].Session.(*linkSession)
		stays := ss[i].State().Stays()
		link, connect = link || linked && stays, connect || !linked && stays
	}
	return link, connect
}

// serving is nil unless every server says that no agent serves; then it is why not.
func (ss sessions) serving() error {
	why := ""
	for l := range ss.links() {
		said := l.Serving()
		if said.Why == "" {
			return nil
		}
		why = said.Why
	}
	if why == "" {
		return nil
	}
	return errors.New("the konnectivity server says: " + why)
}

// list shows the links to an operator.
func (ss sessions) list() []Link {
	var out []Link
	for l, state := range ss.links() {
		out = append(out, Link{Peer: l.Peer(), Address: l.addr, Since: l.since, Heard: l.Heard(), Draining: !state.Stays(), Stats: l.Stats()})
	}
	return out
}

// count adds the links to s.
func (ss sessions) count(s *Stats) {
	for l := range ss.links() {
		s.Links++
		s.Lanes += len(l.Sessions())
		s.Streams += l.Streams()
	}
}
