package lanes

import "time"

// pacing paces lanes of a Group while this side sends bulk. The monitor owns it.
type pacing struct {
	lanes  []*lane // that are paced, see choose
	looked time.Time
	least  time.Duration // round trip of all lanes, shortest of the last minutes; 0: unknown
	pacer  pacer
}

// wait is the time to the next look.
func (p *pacing) wait() time.Duration {
	if len(p.lanes) < 2 {
		return sampleEvery
	}
	return untilLook(p.least)
}

// sends says whether this side sends bulk. Where it receives more than three times as much,
// the queue is on the way to it, and what it sends may be requests.
func sends(seen []carried) bool {
	var sent, both uint64
	for _, c := range seen {
		if len(c.bulk) > 0 {
			sent, both = sent+c.sent, both+c.rate
		}
	}
	return sent >= bulkBytes && sent >= both/4
}

// chooseLocked says which lanes are paced from now on: while this side sends bulk, all but
// the first, which has small messages, and the first too while it has bulk.
func (g *Group) chooseLocked(sends bool) {
	g.pacing.lanes, g.pacing.looked = nil, g.sampled
	for i, l := range g.lanes {
		if sends && (i > 0 || l.bulk > 0) {
			g.pacing.lanes = append(g.pacing.lanes, l)
		} else {
			g.bind(l.ses, 0)
		}
	}
}

// pace looks at the paced lanes, and bounds what they send from now on.
func (g *Group) pace(now time.Time) {
	g.mu.Lock()
	lineOf, bind := g.line, g.bind
	g.mu.Unlock()
	p := &g.pacing
	s := sending{past: now.Sub(p.looked), least: p.least}
	for _, l := range p.lanes {
		line := lineOf(l.ses)
		if line.SRTT > 0 { // else the lane has just ended
			s.add(line, line.Delivered-l.delivered)
		}
		l.delivered = line.Delivered
	}
	p.looked = now
	bound := p.pacer.update(now, s)
	for _, l := range p.lanes {
		bind(l.ses, bound)
	}
}
