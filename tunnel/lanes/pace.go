package lanes

import (
	"slices"
	"time"

	"konnectivity/tunnel/link"
)

// pacer bounds the rate at which lanes send, so that they keep no queue on their line: a
// small message on the first lane would wait behind it. BBR finds out by a queue whether the
// line carries more, and each lane has a BBR of its own, so together they keep one or two
// bandwidth-delay products there. No I/O or clock.
//
// Lanes are free, bound, or at rest. Free lanes are bound when two looks in a row see a
// queue and the rate has stopped growing. They are free again once a bound that is a quarter
// higher has met no queue. When half of the rate still meets one, it is that of other
// traffic, which would take what lanes give up: they rest, without a bound.
type pacer struct {
	line  uint64    // what the line carries, bytes per second; 0: free, or at rest
	full  uint64    // line at the last queue; while free, the rate at a queue just seen, or 0
	peak  uint64    // the most that free lanes sent lately
	least uint64    // half of the most that line was
	rest  time.Time // when a rest ends
}

const (
	// leastLook is the time between two looks on most lines. Free lanes fill the queue of a
	// line within a round trip or two, and then lose what it cannot hold.
	leastLook = 100 * time.Millisecond

	// leastQueue is the shortest queue, as time to drain it. A shorter one may be a processor
	// that was busy, and hardly delays a message.
	leastQueue = 10 * time.Millisecond

	// queuePart is the part of the least round trip that a queue exceeds, if that is longer.
	queuePart = 8

	// pacerTime is how long line would take to change by as much as it is.
	pacerTime = 16 * time.Second

	// peakTime is how long peak would take to fall to 0 if it went on as it begins.
	peakTime = 4 * time.Second

	// drainTime is how long a queue takes to drain, unless deepestCut is too little.
	drainTime = 500 * time.Millisecond

	// deepestCut is the part of line that is left free at most to drain the queue.
	deepestCut = 1.0 / 4

	// pacerRest is several times as long as it takes from the first bound to a rest.
	pacerRest = time.Minute
)

// untilLook is the time to the next look, by the line's least round trip: half of that, in
// which a BBR that starts sends 1.4 times as much as in the one before, but at least leastLook.
// Lanes on a near line are not paced.
func untilLook(least time.Duration) time.Duration {
	if least < far {
		return sampleEvery
	}
	return min(max(leastLook, least/2), sampleEvery)
}

// sending is what the line has carried of paced lanes, since the look before.
type sending struct {
	past  time.Duration // since then
	rates []uint64      // of each lane, bytes delivered per second
	least time.Duration // round trip of the line, shortest of the last minutes; 0: unknown
	rtt   time.Duration // now, on the lane where it is shortest; 0: unknown
}

// add counts a lane, and segments of it. The kernel measures no round trip while a lane is
// idle: it has one from before the queue, which would hide that.
func (s *sending) add(line link.Line, segments uint32) {
	bytes := uint64(segments) * uint64(line.Segment)
	rate := uint64(float64(bytes) / s.past.Seconds())
	if rate >= bulkBytes && (s.rtt == 0 || line.SRTT < s.rtt) {
		s.rtt = line.SRTT
	}
	s.rates = append(s.rates, rate)
}

// rate is that of all lanes.
func (s sending) rate() (all uint64) {
	for _, rate := range s.rates {
		all += rate
	}
	return all
}

// part is how much of line each lane may send: equal parts, but what a slow lane leaves of
// its own goes to the others. A lane is slow if it sends less than half of its part; a lane
// that lost a segment may send little less than that in one look.
func (s sending) part(line uint64) (part uint64) {
	rates := slices.Sorted(slices.Values(s.rates))
	for i, rate := range rates {
		part = line / uint64(len(rates)-i)
		if rate >= part/2 {
			break
		}
		line -= rate
	}
	return part
}

// queue is how long what waits on the line takes to drain.
func (s sending) queue() time.Duration { return max(0, s.rtt-s.least) }

func (s sending) queued() bool { return s.queue() > max(s.least/queuePart, leastQueue) }

// update takes in what lanes sent, and returns how much each of them may, in bytes per
// second; 0: as much as it can.
func (p *pacer) update(now time.Time, s sending) uint64 {
	if len(s.rates) < 2 || s.least < far || now.Before(p.rest) {
		p.line, p.full, p.peak = 0, 0, 0
		return 0
	}
	queued, rate := s.queued(), s.rate()
	past := min(s.past, sampleEvery) // a look comes late where lanes were added, or the process was stopped
	p.peak = max(rate, p.peak-uint64(float64(p.peak)*past.Seconds()/peakTime.Seconds()))
	step := uint64(float64(p.line) * past.Seconds() / pacerTime.Seconds())
	switch {
	case p.line == 0 && !queued:
		p.full = 0
	case p.line == 0 && (p.full == 0 || rate > p.full+p.full/8): // may grow yet
		p.full = rate
	case p.line == 0:
		p.line = p.peak
		p.full, p.least = p.line, p.line/2
	case queued:
		p.line -= step
		p.full = p.line
		if p.line < p.least {
			p.line, p.full, p.rest = 0, 0, now.Add(pacerRest)
		}
	default:
		p.line += step
		p.least = max(p.least, p.line/2)
		if p.line > p.full+p.full/4 {
			p.line, p.full = 0, 0
		}
	}
	cut := min(s.queue().Seconds()/drainTime.Seconds(), deepestCut)
	return s.part(uint64(float64(p.line) * (1 - cut)))
}
