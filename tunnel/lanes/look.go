package lanes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel/link"
)

const (
	// lookEvery is how often lanes are looked at.
	lookEvery = time.Second

	// bulkBytes is what a stream carries between two looks that is bulk.
	bulkBytes = 128 << 10

	// dialTimeout bounds an attempt to add a lane.
	dialTimeout = 10 * time.Second

	// longestPause bounds the wait after such an attempt failed. It doubles, from
	// one look on.
	longestPause = time.Minute
)

// look looks at the lanes as long as there is anything to decide.
func (g *Group) look() {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	g.sample()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-ticker.C:
		}
		s, first := g.sample()
		g.clearFirst(first)
		add, drop, on := g.decide(time.Now(), s)
		if !on {
			return
		}
		for _, l := range drop {
			g.wg.Go(func() { _ = l.ses.Close() })
		}
		g.dial(add)
	}
}

// sample looks at every lane, and lists the bulk of the first that holds up others
// there. The first look at a stream after a quiet time sees all that it carried
// meanwhile.
func (g *Group) sample() (s sample, first []*link.Stream) {
	g.mu.Lock()
	lanes, lineOf := slices.Clone(g.lanes), g.line
	g.mu.Unlock()
	for i, l := range lanes {
		moved, line := l.ses.Moved(), lineOf(l.ses)
		var bulk []*link.Stream
		small := 0
		if moved-l.moved >= bulkBytes {
			bulk, small = l.ses.Bulk(bulkBytes)
		}
		if i == 0 && len(bulk) > 0 && small > 0 {
			first, s.held = bulk, true
		}
		s.bulk += len(bulk)
		s.lost = s.lost || line.Lost > l.lost
		if s.rtt == 0 || line.RTT > 0 && line.RTT < s.rtt {
			s.rtt = line.RTT
		}
		l.moved, l.lost = moved, line.Lost // the looks' own
		g.mu.Lock()
		l.bulk, l.placed = len(bulk), 0
		g.mu.Unlock()
	}
	return s, first
}

// clearFirst moves bulk from the first lane to others, if there are any.
func (g *Group) clearFirst(bulk []*link.Stream) {
	g.mu.Lock()
	others := slices.ContainsFunc(g.lanes[min(1, len(g.lanes)):], func(l *lane) bool { return !l.drains && !l.drops })
	g.mu.Unlock()
	moving := 0
	for _, st := range bulk {
		if others && st.AskMove() {
			moving++
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lanes) > 0 {
		g.lanes[0].bulk -= min(moving, g.lanes[0].bulk)
	}
}

// decide says how many lanes to add and which to close now, and whether there is
// anything more to look at.
func (g *Group) decide(now time.Time, s sample) (add int, drop []*lane, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looking = g.worthLooking() && !g.closed; !g.looking {
		return 0, nil, false
	}
	if g.opt.Dial == nil || g.drained || g.drains {
		return 0, nil, true
	}
	want, have := g.plan.look(now, s), 0
	for _, l := range g.lanes {
		switch {
		case !l.drops:
			have++
		case l.ses.Streams() == 0:
			drop = append(drop, l)
		}
	}
	for i := len(g.lanes) - 1; i > 0 && have > want; i-- {
		// Its streams, if any, cannot be moved; it stays as long as they do.
		if l := g.lanes[i]; !l.drops && l.ses.Streams() == 0 {
			l.drops = true
			l.ses.Drain()
			have--
		}
	}
	if now.After(g.notUntil) {
		add = want - have
	}
	return add, drop, true
}

// dial adds n lanes, all at once.
func (g *Group) dial(n int) {
	if n <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, dialTimeout)
	defer cancel()
	var dials sync.WaitGroup
	defer dials.Wait()
	for range n {
		dials.Go(func() {
			g.dialed(g.dialOne(ctx), time.Now())
		})
	}
}

// errElsewhere is why a link became no lane.
var errElsewhere = errors.New("another server answers at this address")

// dialOne adds a lane.
func (g *Group) dialOne(ctx context.Context) error {
	ses, err := g.opt.Dial(ctx)
	switch {
	case err != nil:
		return err
	case ses.Peer().ID == "" || ses.Peer().ID != g.Peer().ID:
		_ = ses.CloseWith(link.GoAwayDuplicate, "")
		return errElsewhere
	case !g.Add(ses):
		_ = ses.Close()
	}
	return nil
}

// dialed takes in how an attempt ended.
func (g *Group) dialed(err error, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.pause = 0
		return
	}
	g.pause = min(max(2*g.pause, lookEvery), longestPause)
	g.notUntil = now.Add(g.pause)
}
