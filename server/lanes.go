package server

import (
	"slices"
	"sync"

	"konnectivity/internal/memory"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// laneKey is common to all links that are lanes of one peer (docs/link-protocol.md
// §10). A peer with another proven identity or another id has another key.
type laneKey struct{ group, id, identity, identifiers string }

// laneBooks are the groups that the links of one side's peers are lanes of. The
// zero value is ready.
type laneBooks struct {
	mu    sync.Mutex
	known memory.Map[laneKey, *laneGroup]
}

// laneGroup is the links of one peer to this server.
type laneGroup struct {
	*lanes.Group
	key   laneKey
	links int    // that have joined and not left; guarded by laneBooks.mu
	leave func() // set by the first link, and called by the last
}

// replaced ends the links of groups that a peer says it has lost, by a link with that key.
func (b *laneBooks) replaced(key laneKey, lost string) {
	for group := range slices.Chunk([]byte(lost), link.GroupSize) {
		key.group = string(group)
		b.mu.Lock()
		g := b.known.Get(key)
		b.mu.Unlock()
		if g != nil {
			g.Replaced()
		}
	}
}

// join makes a link a lane: of the group that its peer has, or of a new one, whose first it is.
func (b *laneBooks) join(key laneKey, ses *link.Session) (g *laneGroup, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.known.Get(key)
	if known != nil && ses.Lanes() && known.Add(ses) {
		known.links++
		return known, false
	}
	g = &laneGroup{Group: lanes.New(ses, lanes.Options{}), key: key, links: 1}
	if key.group != "" && (known == nil || ses.Lanes()) {
		b.known.Set(key, g)
	}
	return g, true
}

// leave takes out a link that has ended, or is about to, and reports whether it was the last
// of its group.
func (b *laneBooks) leave(g *laneGroup) (last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.links--
	if g.links == 0 && b.known.Get(g.key) == g {
		b.known.Delete(g.key)
	}
	return g.links == 0
}

// joinLane makes a link one of the lanes of its peer, which enters with the first of them and goes
// with the last, until leave, which ends the link. at is the side by whose port it came, and lane
// what a later one is told by.
func (cl *cluster) joinLane(at side, role string, key laneKey, session *link.Session, lane *peer, enter func(*lanes.Group) (leave func())) (leave func()) {
	s, books := cl.server, &cl.lanes[at]
	g, first := books.join(key, session)
	if first {
		s.metrics.links.Add(role, g.Group)
		g.leave = enter(g.Group)
	} else { // the group may have been told before this lane joined
		cl.peers.tell(lane)
	}
	books.replaced(key, session.Peer().Lost) // by now, what they carried has another way
	return func() {
		last := books.leave(g)
		if last {
			g.leave()
		}
		s.closeLink(session)
		if last {
			s.metrics.links.Remove(role, g.Group)
			_ = g.Close() // and waits for what it runs
		}
	}
}
