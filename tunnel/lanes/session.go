package lanes

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// The methods of *link.Session that a Group has, too, for all of its lanes.

// Done is closed when the last lane has ended.
func (g *Group) Done() <-chan struct{} { return g.ends.Done() }

// Ends happens when Done is closed.
func (g *Group) Ends() *tunnel.Event { return &g.ends }

// Drains happens when the peer wants nothing new on any lane, and not with the group.
func (g *Group) Drains() *tunnel.Event { return &g.drains }

// Err is why the lanes ended; nil while one has not. Done is closed by then, or right
// after.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.livesLocked() {
		return nil
	}
	return g.firstLocked().Err()
}

// first is the oldest lane, or the last one that there was.
func (g *Group) first() *link.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.firstLocked()
}

func (g *Group) firstLocked() *link.Session {
	if len(g.lanes) > 0 {
		return g.lanes[0].ses
	}
	return g.last.ses
}

// Sessions are the lanes, the oldest first; none once all have ended.
func (g *Group) Sessions() []*link.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*link.Session, len(g.lanes))
	for i, l := range g.lanes {
		out[i] = l.ses
	}
	return out
}

// each calls do for every lane.
func (g *Group) each(do func(*link.Session)) {
	for _, ses := range g.Sessions() {
		do(ses)
	}
}

// Peer is how the peer introduced itself.
func (g *Group) Peer() link.Hello { return g.first().Peer() }

// RTT is the first lane's.
func (g *Group) RTT() time.Duration { return g.first().RTT() }

// ServerCount is what the peer told last.
func (g *Group) ServerCount() int { return g.first().ServerCount() }

// Serving is what the peer told last of its agents.
func (g *Group) Serving() link.Serving { return g.first().Serving() }

// Resumes says whether both sides take part in resuming.
func (g *Group) Resumes() bool { return g.first().Resumes() }

// API says whether an agent at one side may ask for its cluster's API server.
func (g *Group) API() bool { return g.first().API() }

// Heard is when the peer last sent a frame on any lane.
func (g *Group) Heard() (last time.Time) {
	for _, ses := range g.Sessions() {
		if at := ses.Heard(); at.After(last) {
			last = at
		}
	}
	return last
}

// Streams is how many streams there are.
func (g *Group) Streams() (n int) {
	g.each(func(ses *link.Session) { n += ses.Streams() })
	return n
}

// Stats sums up; counters include those of lanes that have ended.
func (g *Group) Stats() link.Stats {
	g.mu.Lock()
	all, lanes := g.over, slices.Clone(g.lanes) // together: one that ends meanwhile is in either
	g.mu.Unlock()
	for _, l := range lanes {
		all = all.Plus(l.ses.Stats())
	}
	return all
}

// Drain asks the peer to put nothing new on any lane, nor on one that is yet to
// come.
func (g *Group) Drain() {
	g.mu.Lock()
	g.drained = true
	g.mu.Unlock()
	g.each((*link.Session).Drain)
}

// Probe ends each lane soon that does not show that it lives.
func (g *Group) Probe() {
	g.each((*link.Session).Probe)
}

// Rerouted ends or probes each lane, as link.Session does.
func (g *Group) Rerouted(way func(to netip.Addr) (from netip.Addr)) {
	g.each(func(ses *link.Session) { ses.Rerouted(way) })
}

// Replaced ends each lane at once, as link.Session does.
func (g *Group) Replaced() { g.each((*link.Session).Replaced) }

// Forwards says whether the peer is a server that forwards to others.
func (g *Group) Forwards() bool { return g.first().Forwards() }

// Bound is how many streams the peer has opened whose connections do not outlive them.
func (g *Group) Bound() (n int) {
	g.each(func(ses *link.Session) { n += ses.Bound() })
	return n
}

// SetServerCount tells the peer.
func (g *Group) SetServerCount(n int) {
	g.each(func(ses *link.Session) { ses.SetServerCount(n) })
}

// SetServing tells the peer whether agents serve.
func (g *Group) SetServing(s link.Serving) {
	g.each(func(ses *link.Session) { ses.SetServing(s) })
}

// WaitIdle returns once every lane is idle, or, with ctx's cause, once ctx has ended.
func (g *Group) WaitIdle(ctx context.Context) error {
	busy := func(ses *link.Session) bool { return !ses.Idle() }
	for slices.ContainsFunc(g.Sessions(), busy) {
		for _, ses := range g.Sessions() {
			if err := ses.WaitIdle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends all lanes and returns when nothing of them runs any more.
func (g *Group) Close() error { return g.CloseWith(link.GoAwayShutdown, "") }

// CloseWith is Close with the reason that the peer is told.
func (g *Group) CloseWith(code link.GoAwayCode, text string) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	var closing sync.WaitGroup
	for _, ses := range g.Sessions() {
		closing.Go(func() { _ = ses.CloseWith(code, text) })
	}
	closing.Wait()
	g.wg.Wait()
	return nil
}
