package lanes

import (
	"slices"
	"time"

	"konnectivity/tunnel/link"
)

const (
	// lookEvery is how often lanes are looked at, while there is bulk.
	lookEvery = 500 * time.Millisecond

	// bulkBytes is what a stream carries between two looks that is bulk.
	bulkBytes = 64 << 10

	// wakeBytes is what a lane that is alone carries before there is a look at all.
	wakeBytes = 1 << 20
)

// startLooking has look run, unless it does.
func (g *Group) startLooking() {
	if !g.looking && !g.closed {
		g.looking = true
		g.wg.Go(g.look)
	}
}

// goesOn says whether there is to be another look: one lane is enough without bulk,
// until it has carried some again.
func (g *Group) goesOn(bulk bool) bool {
	g.looking = !g.closed && (len(g.lanes) > 1 || bulk && g.grows())
	if !g.looking && g.grows() {
		g.lanes[0].ses.WakeAfter(wakeBytes, g.wake)
	}
	return g.looking
}

// grows says whether more lanes may be added to the only one.
func (g *Group) grows() bool {
	return g.opt.Dial != nil && g.plan.max > 1 && len(g.lanes) == 1 && g.lanes[0].ses.Lanes()
}

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
		g.add(add)
	}
}

// sample looks at every lane, and lists the bulk of the first that is to leave it. The
// first look at a stream after a quiet time sees all that it carried meanwhile.
func (g *Group) sample() (s sample, first []*link.Stream) {
	g.mu.Lock()
	lanes, lineOf := slices.Clone(g.lanes), g.line
	g.mu.Unlock()
	past := max(time.Since(g.looked), lookEvery) // more after lanes were added
	g.looked = time.Now()
	for i, l := range lanes {
		moved, line := l.ses.Moved(), lineOf(l.ses)
		var bulk []*link.Stream
		small := 0
		if moved-l.moved >= bulkBytes {
			bulk, small = l.ses.Bulk(bulkBytes)
		}
		if i == 0 {
			first, s.held = bulk[:leaving(len(bulk), small, len(lanes))], len(bulk) > 0 && small > 0
		}
		s.bulk += len(bulk)
		s.lost = s.lost || line.Lost > l.lost
		s.rate = max(s.rate, uint64(float64(moved-l.moved)/past.Seconds()))
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
	want, have := g.plan.look(now, s), 0
	if !g.goesOn(s.bulk > 0) {
		return 0, nil, false
	}
	if g.opt.Dial == nil || g.drained || g.drains.Err() != nil {
		return 0, nil, true
	}
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
