package server

import (
	"sync"

	"konnectivity/internal/small"
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
	known small.Map[laneKey, *laneGroup]
}

// laneGroup is the links of one peer to this server.
type laneGroup struct {
	*lanes.Group
	links int // that have joined and not left; guarded by laneBooks.mu
	leave func()
}

// join makes a link a lane: of the group that its peer has, or of a new one,
// which begin takes in. leave must be called when the link has ended, or is about
// to be: that of the last calls what begin returned, and says that it was the last.
func (b *laneBooks) join(key laneKey, ses *link.Session, begin func(*lanes.Group) (leave func())) (of *lanes.Group, leave func() (last bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.known.Get(key)
	if g == nil || key.group == "" || !ses.Lanes() || !g.Add(ses) {
		g = &laneGroup{Group: lanes.New(ses, lanes.Options{})}
		g.leave = begin(g.Group)
		if key.group != "" && ses.Lanes() {
			b.known.Set(key, g)
		}
	}
	g.links++
	return g.Group, func() bool { return b.leave(key, g) }
}

// leave takes out a link.
func (b *laneBooks) leave(key laneKey, g *laneGroup) (last bool) {
	b.mu.Lock()
	g.links--
	last = g.links == 0
	if last && b.known.Get(key) == g {
		b.known.Delete(key)
	}
	b.mu.Unlock()
	if last {
		g.leave()
	}
	return last
}
