package uplink

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

const (
	// idleCheck is the longest pause between two looks at a link that is to be
	// left: at whether another is there to go on by, and anything on it still.
	idleCheck = time.Second

	// firstCheck is the first such pause. Later ones are longer, so that
	// streams that come back, because no other server has their agent, are not
	// moved all the time.
	firstCheck = 50 * time.Millisecond
)

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

// pick returns the link with the fewest streams that is not among tried; one to
// a server that says that no agent serves only if there is no other, and one that
// is being left only then; nil if there is none.
func (s *Server) pick(tried []*pooled) *pooled {
	var best *pooled
	bestLoad := 0
	for _, m := range s.set.Members() {
		l := m.Session
		if !l.alive() || slices.Contains(tried, l) {
			continue
		}
		load := l.Streams()
		switch {
		case l.isLeaving():
			load += 1 << 30 // behind every other
		case l.Serving().Why != "":
			load += 1 << 29
		}
		if best == nil || load < bestLoad {
			best, bestLoad = l, load
		}
	}
	return best
}

// adopt makes a link of h, which it takes over.
func (s *Server) adopt(ctx context.Context, h handshaken) (*pooled, error) {
	hello := s.hello
	if s.opt.Lanes > 1 {
		hello.Group = lanes.NewID()
	}
	first, err := s.greet(ctx, h, hello)
	if err != nil {
		return nil, err
	}
	g := lanes.New(first, lanes.Options{
		Max:  s.opt.Lanes,
		Dial: func(ctx context.Context) (*link.Session, error) { return s.connectLane(ctx, h.addr, hello) },
	})
	s.health.setOld(false) // at once: the next request may come before the loop takes it in
	s.note(nil)
	return &pooled{Group: g, addr: h.addr, since: time.Now(), id: strconv.FormatInt(s.made.Add(1), 10)}, nil
}

// connectLane makes another link to one address.
func (s *Server) connectLane(ctx context.Context, addr netip.AddrPort, hello link.Hello) (*link.Session, error) {
	h, err := s.connectTo(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !h.link() {
		_ = h.NetConn().Close()
		return nil, errNoLink
	}
	return s.greet(ctx, h, hello)
}

// leave ends a link that is to be left, once nothing is on it and another is up.
func (s *Server) leave(l *pooled) {
	pause := firstCheck
	for {
		s.opt.Leave()
		if s.resumable(l) {
			for _, ses := range l.Sessions() {
				s.ends.Move(ses)
			}
			pause = min(2*pause, idleCheck)
		}
		if s.emptied(l, pause) && !s.only(l) {
			break
		}
		if s.ctx.Err() != nil || !l.alive() {
			return
		}
	}
	_ = l.Close()
}

// emptied waits until nothing is on l and another link is up, for no longer
// than pause, and says whether nothing is on it.
func (s *Server) emptied(l *pooled, pause time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.ctx, pause)
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

// only says whether l is the only link that is up.
func (s *Server) only(l *pooled) bool {
	return s.pick([]*pooled{l}) == nil
}
