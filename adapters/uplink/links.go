package uplink

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// maxReplaced is how many links that were replaced may be up still, because what is
// on them cannot go on by another, before there is no further search.
const maxReplaced = 4

// pooled is one link, of one or more lanes.
type pooled struct {
	*lanes.Group
	addr     netip.AddrPort
	since    time.Time
	id       string      // of this link and no other, whatever servers call themselves
	leaving  atomic.Bool // nothing new is to be put on it while there is another
	replaced atomic.Bool // the same, for good: another has taken its place
}

// ServerID implements peers.Session: two links to one server are not one too
// many.
func (l *pooled) ServerID() string { return l.id }

// alive says whether l has not ended. Once it says no, Done is closed.
func (l *pooled) alive() bool {
	if l.Err() == nil {
		return true
	}
	<-l.Done() // about to be closed
	return false
}

func (l *pooled) isLeaving() bool {
	return tunnel.Closed(l.Draining()) || l.leaving.Load() || l.replaced.Load()
}

// agentless says that the server told that no agent serves.
func (l *pooled) agentless() bool { return l.Serving().Why != "" }

// links are those of a pool at one moment, and the choice among them. Some may
// have ended, which are passed over.
type links []*peers.Member[netip.AddrPort, *pooled]

// up are those that have not ended.
func (ls links) up() iter.Seq[*pooled] {
	return func(yield func(*pooled) bool) {
		for _, m := range ls {
			if m.Session.alive() && !yield(m.Session) {
				return
			}
		}
	}
}

// pick returns the link with the fewest streams that is not among tried; one to
// a server that says that no agent serves only if there is no other, and one that
// is being left only then; nil if there is none.
func (ls links) pick(tried ...*pooled) *pooled {
	var best *pooled
	bestLoad := 0
	for l := range ls.up() {
		if slices.Contains(tried, l) {
			continue
		}
		load := l.Streams()
		switch {
		case l.isLeaving():
			load += 1 << 30 // behind every other
		case l.agentless():
			load += 1 << 29
		}
		if best == nil || load < bestLoad {
			best, bestLoad = l, load
		}
	}
	return best
}

// first returns a link to the server with that id, unless it is being left or
// its server says that no agent serves; else the one that pick returns.
func (ls links) first(id string) *pooled {
	for l := range ls.up() {
		if id != "" && l.Peer().ID == id && !l.isLeaving() && !l.agentless() {
			return l
		}
	}
	return ls.pick()
}

// resumes says whether connections on a link that is to be left can go on by
// another.
func (ls links) resumes(left *pooled) bool {
	for l := range ls.up() {
		if l != left && !l.isLeaving() && l.Resumes() {
			return true
		}
	}
	return false
}

// toReplace is a link that another may do better than: all are to servers that say
// that no agent serves, and there are servers that no link is to. It is the one
// with the fewest streams; nil if there is none.
func (ls links) toReplace() (best *pooled) {
	linked, there, bestLoad, replaced := map[string]bool{}, 0, 0, 0
	for l := range ls.up() {
		switch {
		case l.replaced.Load():
			replaced++
			continue
		case l.isLeaving():
			continue
		case !l.agentless():
			return nil
		}
		linked[l.Peer().ID] = true
		there = max(there, l.ServerCount())
		if load := l.Streams(); best == nil || load < bestLoad {
			best, bestLoad = l, load
		}
	}
	if len(linked) >= there || replaced >= maxReplaced {
		return nil
	}
	return best
}

// stay says whether there is a link that is not being left.
func (ls links) stay() bool {
	for l := range ls.up() {
		if !l.isLeaving() {
			return true
		}
	}
	return false
}

// serving is nil unless every server says that no agent serves; then it is why not.
func (ls links) serving() error {
	why := ""
	for l := range ls.up() {
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

// list shows them to an operator.
func (ls links) list() []Link {
	var out []Link
	for l := range ls.up() {
		out = append(out, Link{Peer: l.Peer(), Address: l.addr, Since: l.since, Draining: l.isLeaving(), Stats: l.Stats()})
	}
	return out
}

// count adds them to s.
func (ls links) count(s *Stats) {
	for l := range ls.up() {
		s.Links++
		s.Lanes += len(l.Sessions())
		s.Streams += l.Streams()
	}
}

// Link is a link to a server, as an operator sees it.
type Link struct {
	Peer     link.Hello // without its token
	Address  netip.AddrPort
	Since    time.Time
	Draining bool
	Stats    link.Stats
}

// Stats are figures for metrics.
type Stats struct {
	Links    int   // that are up
	Lanes    int   // their TCP connections
	Streams  int   // on them
	Connects int64 // handshakes with the server that worked
	Failures int64 // those that did not
	Lost     int64 // links that ended without having been asked to
}
