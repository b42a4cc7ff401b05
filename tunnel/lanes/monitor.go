package lanes

import (
	"slices"
	"time"

	"konnectivity/tunnel/link"
)

const (
	// sampleEvery is how often lanes are sampled while there is bulk.
	sampleEvery = 500 * time.Millisecond

	// firstSample is how long after its start the monitor looks for bulk that is to move.
	// A server's monitor starts as the second lane joins.
	firstSample = 100 * time.Millisecond

	// bulkBytes is the least that bulk carries between two samples.
	bulkBytes = 64 << 10

	// wakeBytes is what the only lane carries before the monitor starts.
	wakeBytes = 1 << 20
)

// startMonitor starts the monitor, unless it runs.
func (g *Group) startMonitor() {
	if !g.monitors && !g.closed {
		g.monitors = true
		g.wg.Go(g.monitor)
	}
}

// goesOn reports whether the monitor goes on. It ends when one lane is left and carries no
// bulk; that lane starts it again.
func (g *Group) goesOn(bulk bool) bool {
	g.monitors = !g.closed && (len(g.lanes) > 1 || bulk && g.grows())
	if g.monitors {
		return true
	}
	g.chooseLocked(false) // without a monitor, bounds would stay
	g.pacing = pacing{}
	if g.grows() {
		g.lanes[0].ses.WakeAfter(wakeBytes, g.wake)
	}
	return false
}

// grows reports whether more lanes may be added to the only one.
func (g *Group) grows() bool {
	return g.opt.Dial != nil && g.plan.max > 1 && len(g.lanes) == 1 && g.lanes[0].ses.Lanes()
}

// monitor samples the lanes as long as there is anything to decide.
func (g *Group) monitor() {
	g.sample()
	if !g.lasts(firstSample) {
		return
	}
	_, seen := g.sample()
	g.spread(seen)
	for g.untilSample() {
		s, seen := g.sample()
		add, drop, on := g.decide(time.Now(), s)
		if !on {
			return
		}
		for _, l := range drop {
			g.wg.Go(func() { _ = l.ses.Close() })
		}
		g.spread(seen)
		if add > 0 {
			g.add(add)
			g.spread(seen)
		}
	}
}

// lasts waits for d, and says whether the monitor is still wanted.
func (g *Group) lasts(d time.Duration) bool {
	select {
	case <-g.ends.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// untilSample waits for the next sample, and says whether the monitor is still wanted. Lanes
// that send bulk are paced meanwhile.
func (g *Group) untilSample() bool {
	for end := time.Now().Add(sampleEvery); time.Now().Before(end); {
		if !g.lasts(g.pacing.wait()) {
			return false
		}
		g.pace(time.Now())
	}
	return true
}

// carried is what carried something on a lane since the last sample.
type carried struct {
	on    *lane
	bulk  []*link.Stream
	small int    // streams
	rate  uint64 // bytes per second, both ways
	sent  uint64 // and those of them that went from here
}

// sample samples every lane. After a quiet time, the first sample of a stream has all that
// it carried meanwhile.
func (g *Group) sample() (s sample, seen []carried) {
	g.mu.Lock()
	lanes, lineOf := slices.Clone(g.lanes), g.line
	g.mu.Unlock()
	past := max(time.Since(g.sampled), sampleEvery).Seconds() // more after lanes were added
	perSecond := func(bytes uint64) uint64 { return uint64(float64(bytes) / past) }
	g.sampled = time.Now()
	for i, l := range lanes {
		line := lineOf(l.ses)
		sent, moved := l.ses.Moved()
		c := carried{on: l, rate: perSecond(moved - l.moved), sent: perSecond(sent - l.sent)}
		if moved-l.moved >= bulkBytes {
			c.bulk, c.small = l.ses.Bulk(bulkBytes)
		}
		seen = append(seen, c)
		s.held = s.held || i == 0 && len(c.bulk) > 0 && c.small > 0
		s.bulk += len(c.bulk)
		s.lost = s.lost || line.Lost > l.lost
		s.rate = max(s.rate, c.rate)
		if s.rtt == 0 || line.RTT > 0 && line.RTT < s.rtt {
			s.rtt = line.RTT
		}
		l.moved, l.sent, l.lost, l.delivered = moved, sent, line.Lost, line.Delivered
		g.mu.Lock()
		l.bulk, l.placed = len(c.bulk), 0
		g.mu.Unlock()
	}
	g.pacing.least = s.rtt // the first lane may have met the line before its queue
	g.mu.Lock()
	g.chooseLocked(sends(seen))
	g.mu.Unlock()
	return s, seen
}

// spread moves bulk off the first lane to others, if there are any, and evens it out among
// these.
func (g *Group) spread(seen []carried) {
	g.mu.Lock()
	counts, others := make([]amount, len(seen)), takers(g.loadsLocked())
	for i, c := range seen {
		counts[i] = amount{bulk: len(c.bulk), small: c.small, first: len(g.lanes) > 0 && c.on == g.lanes[0]}
	}
	g.mu.Unlock()
	for i, n := range leaving(counts, others) {
		moving := 0
		for _, st := range seen[i].bulk[:n] {
			if st.AskMove() {
				moving++
			}
		}
		g.mu.Lock()
		seen[i].on.bulk -= min(moving, seen[i].on.bulk)
		g.mu.Unlock()
	}
}

// decide returns how many lanes to add, which to close now, and whether the monitor goes
// on.
func (g *Group) decide(now time.Time, s sample) (add int, drop []*lane, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	want, have := g.plan.update(now, s), 0
	if !g.goesOn(s.bulk > 0) {
		return 0, nil, false
	}
	if g.opt.Dial == nil || g.drained || g.drains.Happened() {
		return 0, nil, true
	}
	for _, l := range g.lanes {
		switch {
		case !l.drops:
			have++
		case l.ses.Idle():
			drop = append(drop, l)
		}
	}
	for i := len(g.lanes) - 1; i > 0 && have > want; i-- {
		// Its streams, if any, cannot be moved, so it stays while it has some, and until the
		// last bytes of ended ones are delivered: closing it would cut them.
		if l := g.lanes[i]; !l.drops && l.ses.Idle() {
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
