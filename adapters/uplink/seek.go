package uplink

import (
	"context"
	"sync"
	"time"

	"konnectivity/internal/peers"
)

// maxReplaced is how many links that were replaced may be up still, because what is
// on them cannot go on by another, before there is no further search.
const maxReplaced = 4

// seeker paces the search for a server that has agents. Its methods may be called
// from any goroutine.
type seeker struct {
	mu      sync.Mutex
	pause   peers.Backoff
	next    time.Time // no search before
	seeking bool
}

// begin says whether to search now. Who is told so has to call end.
func (k *seeker) begin(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seeking || now.Before(k.next) {
		return false
	}
	if now.Sub(k.next) >= maxPause { // the last search was for another loss
		k.pause = policy.Backoff
	}
	k.seeking = true
	return true
}

func (k *seeker) end(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seeking, k.next = false, now.Add(k.pause.Failure())
}

// seek looks for a server that has agents where l, by which something is to go, and
// every other link are to servers that say they have none. Both links to the one
// address of several servers may be to the same server. It does not block.
func (s *Server) seek(l *pooled) {
	if l.Serving().Why == "" {
		return
	}
	old := s.toReplace()
	if old == nil || !s.seeker.begin(time.Now()) {
		return
	}
	s.start(func() {
		s.replace(old)
		s.seeker.end(time.Now())
	})
}

// toReplace is a link that another may do better than: all are to servers that say
// that no agent serves, and there are servers that no link is to. It is the one
// with the fewest streams; nil if there is none.
func (s *Server) toReplace() (best *pooled) {
	linked, there, bestLoad, replaced := map[string]bool{}, 0, 0, 0
	for _, m := range s.set.Members() {
		l := m.Session
		switch {
		case !l.alive():
			continue
		case l.replaced.Load():
			replaced++
			continue
		case l.isLeaving():
			continue
		case l.Serving().Why == "":
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

// replace makes another link to the address of one whose server has no agent. If
// that finds a server that has one, the old link is left.
func (s *Server) replace(old *pooled) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ConnectTimeout)
	defer cancel()
	found, err := s.keep(ctx, old.addr)
	if err != nil {
		return
	}
	if found.Serving().Why != "" || !old.alive() || old.isLeaving() {
		_ = found.Close()
		return
	}
	s.set.Offer(found.addr, found)
	old.replaced.Store(true) // not before, or nobody would be ready
	s.start(func() { s.leave(old) })
}
