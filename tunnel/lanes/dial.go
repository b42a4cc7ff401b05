package lanes

import (
	"context"

	"konnectivity/tunnel"
)

// Dial implements tunnel.Dialer. A dial whose lane ends before it was answered
// is made again on another, unless it is its opener's to repeat. Where one fails with the last
// lane, Done is closed: its opener may ask whether that was lost.
func (g *Group) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	for {
		l, others := g.pick(f)
		c, err := l.ses.Dial(ctx, f)
		if err != nil && g.Err() != nil {
			<-g.Done() // about to be closed
		}
		if err == nil || !others || f.Resume != nil || ctx.Err() != nil || !tunnel.Closed(l.ses.Done()) || !tunnel.FailureOf(err).Retryable() {
			return c, err
		}
	}
}

// pick is the lane for a new stream; the last one that there was if all have
// ended.
func (g *Group) pick(f *tunnel.Flow) (l *lane, others bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	loads := g.loadsLocked()
	i, moves := place(loads), f.Resume != nil && f.Resume.Bulk
	if moves {
		i = placeBulk(loads)
	}
	switch {
	case i >= 0:
		if moves || f.Resume == nil {
			g.lanes[i].placed++
		}
		return g.lanes[i], len(g.lanes) > 1
	case len(g.lanes) > 0:
		return g.lanes[0], false
	default:
		return g.last, false
	}
}

// loadsLocked describes the lanes, in their order.
func (g *Group) loadsLocked() []load {
	loads := make([]load, len(g.lanes))
	for i, l := range g.lanes {
		loads[i] = load{bulk: l.bulk + l.placed, gone: tunnel.Closed(l.ses.Done()), leaves: l.drains() || l.drops}
	}
	return loads
}
