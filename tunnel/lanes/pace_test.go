package lanes

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// paceLine is a line whose queue lanes fill, as a pacer sees it.
type paceLine struct {
	pacer   pacer
	now     time.Time
	carries float64 // bytes per second
	wants   float64 // what the lanes would send
	other   time.Duration
	queue   time.Duration
	bound   uint64 // of each lane
}

const (
	paceLanes = 8
	paceRTT   = 100 * time.Millisecond
)

// even is a rate of all lanes in equal parts.
func even(lanes int, rate uint64) []uint64 {
	return slices.Repeat([]uint64{rate / uint64(lanes)}, lanes)
}

func newPaceLine() *paceLine {
	return &paceLine{now: time.Unix(1000, 0), carries: 20e6, wants: 30e6}
}

// look lets time pass until the next one, and returns what part of the line was used. The
// queue has room for a round trip, and is seen a look late.
func (l *paceLine) look() float64 {
	sends := l.wants
	if l.bound > 0 {
		sends = min(sends, float64(l.bound)*paceLanes)
	}
	past := untilLook(paceRTT)
	grows := time.Duration(float64(past) * (sends/l.carries - 1))
	carried, seen := min(sends, l.carries), l.queue
	if l.queue > 0 {
		carried = l.carries
	}
	l.queue = min(max(0, l.queue+grows), paceRTT)
	l.now = l.now.Add(past)
	l.bound = l.pacer.update(l.now, sending{past: past, rates: even(paceLanes, uint64(carried)), least: paceRTT, rtt: paceRTT + seen + l.other})
	return carried / l.carries
}

// run lets d pass, and returns the mean part of the line and the mean queue.
func (l *paceLine) run(d time.Duration) (used float64, queue time.Duration) {
	looks := 0
	for end := l.now.Add(d); l.now.Before(end); looks++ {
		used += l.look()
		queue += l.queue
	}
	return used / float64(looks), queue / time.Duration(looks)
}

// Lanes that would keep a round trip of bytes on their line keep little there, and use
// nearly all of it, also once it carries less, or more.
func TestPacedLanesKeepNoQueue(t *testing.T) {
	l := newPaceLine()
	l.run(5 * time.Second)
	for _, carries := range []float64{20e6, 14e6, 24e6} {
		l.carries = carries
		l.run(6 * time.Second)
		used, queue := l.run(50 * time.Second)
		testutil.AtLeast(t, used, 0.95, "the use of %.0f MB/s", carries/1e6)
		testutil.AtMost(t, queue, paceRTT/5, "the queue")
	}
}

// A line that stands nearly still for a moment, as its processors are busy, keeps most of what
// it carried before.
func TestPacedLanesOutliveAStall(t *testing.T) {
	l := newPaceLine()
	l.wants = l.carries
	l.run(2 * time.Second)
	l.carries /= 4
	l.run(500 * time.Millisecond)
	l.carries *= 4
	used, _ := l.run(2 * time.Second)
	testutil.AtLeast(t, used, 0.75, "the use of the line right after")
}

// Far lines are looked at more often than they are sampled, but not more than twice a round
// trip.
func TestUntilLook(t *testing.T) {
	const ms = time.Millisecond
	for least, want := range map[time.Duration]time.Duration{
		0: sampleEvery, far - 1: sampleEvery, far: leastLook, 150 * ms: leastLook, 300 * ms: 150 * ms, 2 * time.Second: sampleEvery,
	} {
		testutil.Equal(t, untilLook(least), want, "on a line of %v", least)
	}
}

// A look that comes late changes no more than one in time.
func TestLateLook(t *testing.T) {
	for past, queue := range map[time.Duration]time.Duration{9 * time.Second: paceRTT, 10 * time.Second: 0, time.Minute: paceRTT} {
		l := newPaceLine()
		l.run(5 * time.Second)
		was := l.pacer.line
		l.pacer.update(l.now.Add(past), sending{past: past, rates: even(paceLanes, 20e6), least: paceRTT, rtt: paceRTT + queue})
		testutil.Between(t, l.pacer.line, was-was/32, was+was/32, "the line, %v late", past)
	}
}

// A queue that does not go is another's: lanes leave it at most half of the line, and then a
// minute passes before they leave any again.
func TestPacedLanesKeepTheirPart(t *testing.T) {
	l := newPaceLine()
	for range 12 { // half of the most that there was counts
		l.run(10 * time.Second)
		l.carries *= 1.1
		l.wants *= 1.1
	}
	l.other = paceRTT
	bound, looks, began := 0, 0, l.now
	var rest time.Time
	for ; l.now.Sub(began) < 3*time.Minute; looks++ {
		l.look()
		switch {
		case l.bound == 0:
			if bound > 0 && rest.IsZero() {
				rest = l.now
			}
			continue
		case !rest.IsZero() && l.now.Sub(rest) < pacerRest:
			t.Fatalf("bound %v after a rest began", l.now.Sub(rest))
		case !rest.IsZero():
			rest = time.Time{}
		}
		bound++
		least := l.carries * (1 - deepestCut) / 2
		testutil.Requires(t, float64(l.bound)*paceLanes >= 0.95*least, "%d B/s for each lane, of %.0f", l.bound, l.carries)
	}
	testutil.Between(t, bound, 1, looks/3, "looks that it is bound in")
}

// What lanes send is bound only while a queue on a far line is theirs.
func TestLanesArePacedForAQueueOnly(t *testing.T) {
	const ms = time.Millisecond
	queue := sending{rates: even(4, 8e6), least: 100 * ms, rtt: 200 * ms}
	with := func(change func(*sending)) sending { s := queue; change(&s); return s }
	at := func(rate uint64) sending { return with(func(s *sending) { s.rates = even(4, rate) }) }
	none := with(func(s *sending) { s.rtt = s.least + s.least/queuePart })
	slow := with(func(s *sending) { s.rates = []uint64{1e5, 77e5, 1e5, 1e5} })
	const each = 8e6 * (1 - 0.2) / 4 // a fifth drains 100 ms in drainTime
	for name, looks := range map[string][]struct {
		s    sending
		want uint64
	}{
		"a queue":                          {{queue, 0}, {queue, each}},
		"slow lanes":                       {{slow, 0}, {slow, 8e6*(1-0.2) - 3e5}},
		"one that goes meanwhile":          {{queue, 0}, {none, 0}, {queue, 0}, {queue, each}},
		"a short one":                      {{none, 0}, {none, 0}, {none, 0}},
		"a busy processor":                 {{with(func(s *sending) { s.least, s.rtt = 20*ms, 30*ms }), 0}, {with(func(s *sending) { s.least, s.rtt = 20*ms, 30*ms }), 0}},
		"a rate that grows":                {{at(4e6), 0}, {at(6e6), 0}, {queue, 0}, {queue, each}},
		"one lane":                         {{with(func(s *sending) { s.rates = even(1, 8e6) }), 0}, {with(func(s *sending) { s.rates = even(1, 8e6) }), 0}},
		"no lane":                          {{sending{least: 100 * ms}, 0}, {sending{least: 100 * ms}, 0}},
		"a near line":                      {{with(func(s *sending) { s.least = far - 1 }), 0}, {with(func(s *sending) { s.least = far - 1 }), 0}},
		"a line of which nothing is known": {{with(func(s *sending) { s.least, s.rtt = 0, 0 }), 0}, {with(func(s *sending) { s.least, s.rtt = 0, 0 }), 0}},
	} {
		var p pacer
		now := time.Unix(1000, 0)
		for i, look := range looks {
			now = now.Add(leastLook)
			testutil.Equal(t, p.update(now, look.s), look.want, "%s, bound at look %d", name, i)
		}
	}
}

// What a slow lane does not use of its part goes to the others.
func TestSlowLanesLeaveTheirPart(t *testing.T) {
	for _, c := range []struct {
		rates []uint64
		want  uint64 // of 800
	}{
		{[]uint64{200, 200, 200, 200}, 200},
		{[]uint64{100, 160, 175, 200}, 200},
		{[]uint64{700, 10, 10, 10}, 770},
		{[]uint64{10, 300, 100, 300}, 345},
		{[]uint64{10, 300, 140, 300}, 263},
		{[]uint64{99, 200, 200, 200}, 233},
		{[]uint64{10, 10, 10, 10}, 770},
		{[]uint64{0, 0}, 800},
		{[]uint64{5000, 1}, 799},
	} {
		testutil.Equal(t, (sending{rates: c.rates}).part(800), c.want, "the part of each lane of %v", c.rates)
		testutil.Equal(t, (sending{rates: c.rates}).part(0), 0, "the part of each lane of %v, without a line", c.rates)
	}
}

// Of the lanes that send bulk, the one with the shortest round trip tells the queue: late
// segments lengthen that of others, and that of an idle lane may be from before the queue.
func TestQueueIsTheShortest(t *testing.T) {
	const ms = time.Millisecond
	s := sending{past: sampleEvery, least: 46 * ms}
	for _, rtt := range []time.Duration{90, 70, 80} {
		s.add(link.Line{SRTT: rtt * ms, Segment: bulkBytes / 64}, 32)
	}
	s.add(link.Line{SRTT: 50 * ms, Segment: bulkBytes / 64}, 31)
	s.add(link.Line{SRTT: 50 * ms, Segment: bulkBytes / 64}, 0)
	testutil.Equal(t, s.queue(), 70*ms-46*ms, "the queue")
	testutil.Equal(t, s.rates[0], bulkBytes, "the first rate")
	testutil.Equal(t, len(s.rates), 5, "rates")
}

// A side sends bulk if a quarter of it went from here. Small streams do not count, however
// many there are.
func TestSideThatSendsBulk(t *testing.T) {
	bulk := make([]*link.Stream, 1)
	small := carried{small: 100, rate: 100 * bulkBytes, sent: 100 * bulkBytes}
	for _, c := range []struct {
		rate, sent uint64
		want       bool
	}{
		{bulkBytes, bulkBytes, true},
		{bulkBytes, bulkBytes - 1, false},
		{8 * bulkBytes, 2 * bulkBytes, true},
		{8 * bulkBytes, 2*bulkBytes - 1, false},
	} {
		seen := []carried{small, {bulk: bulk, rate: c.rate / 2, sent: c.sent}, {bulk: bulk, rate: c.rate / 2}}
		testutil.Equal(t, sends(seen), c.want, "it sends bulk, with %+v", c)
	}
	testutil.Equal(t, sends([]carried{small}), false, "small streams count")
}

// A bound is lifted once what lanes send does not need it: there is no queue, however far it
// is raised.
func TestBoundThatNothingNeedsIsLifted(t *testing.T) {
	l := newPaceLine()
	l.run(5 * time.Second)
	testutil.Equal(t, l.bound != 0, true, "it is bound")
	l.wants = l.carries / 2
	l.run(10 * time.Second)
	testutil.Equal(t, l.bound, 0, "the bound of each lane")
}

// The lanes that send bulk are bound soon after they fill the queue, and free again once they
// send none. The first lane alone has met the line before its queue, and the last is idle.
func TestLanesThatSendBulkArePaced(t *testing.T) {
	withGroup(t, 4, Options{}, func(t *testing.T, r *rig, g *Group) {
		const ms = time.Millisecond
		lanes := g.Sessions()
		var bounds sync.Map
		g.mu.Lock()
		g.line = func(ses *link.Session) link.Line {
			sent, _ := ses.Moved()
			line := link.Line{RTT: 100 * ms, SRTT: 100 * ms, Delivered: uint32(sent), Segment: 1}
			switch ses {
			case lanes[0]:
				line.RTT = 50 * ms
			case lanes[3]:
				line.SRTT = 50 * ms
			}
			return line
		}
		began, bound := time.Now(), sync.OnceValue(time.Now)
		g.bind = func(ses *link.Session, rate uint64) {
			if bounds.Store(ses, rate); rate > 0 {
				bound()
			}
		}
		g.mu.Unlock()
		boundOf := func(ses *link.Session) uint64 {
			rate, _ := bounds.Load(ses)
			return rate.(uint64)
		}
		var bulk []tunnel.Conn
		for _, ses := range lanes[1:3] {
			c := testutil.Must(ses.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
			bulk = append(bulk, c)
		}
		time.Sleep(firstSample + sampleEvery/2) // not at the instant of a sample
		for range 4 * sampleEvery / leastLook {
			for _, c := range bulk {
				carry(t, c)
			}
			time.Sleep(leastLook)
		}
		synctest.Wait()
		testutil.AtMost(t, bound().Sub(began), firstSample+2*sampleEvery, "time until it is bound")
		for i, ses := range lanes {
			testutil.Equal(t, boundOf(ses) > 0, i > 0, "lane %d is bound", i)
		}
		time.Sleep(2 * sampleEvery)
		synctest.Wait()
		for i, ses := range lanes {
			testutil.Equal(t, boundOf(ses), 0, "the bound of lane %d, which sends nothing any more", i)
		}
	})
}

// A lane whose others end right before a sample, at which a server's monitor ends too, is
// bound no longer.
func TestLastLaneIsNotBound(t *testing.T) {
	withGroup(t, 3, Options{}, func(t *testing.T, r *rig, g *Group) {
		lanes := g.Sessions()
		var looks, bound atomic.Uint64
		ends := func() {
			for _, ses := range []*link.Session{lanes[0], lanes[2]} {
				go func() { _ = ses.Close() }()
			}
			for len(g.Sessions()) > 1 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(sampleEvery) // so that this look was the last before the sample
		}
		g.mu.Lock()
		g.line = func(ses *link.Session) link.Line {
			sent, _ := ses.Moved()
			return link.Line{RTT: 50 * time.Millisecond, SRTT: 100 * time.Millisecond, Delivered: uint32(sent), Segment: 1}
		}
		g.bind = func(ses *link.Session, rate uint64) {
			switch {
			case ses == lanes[1]:
				bound.Store(rate)
			case ses == lanes[2] && rate > 0 && looks.Add(1) == 5:
				ends()
			}
		}
		g.mu.Unlock()
		var bulk []tunnel.Conn
		for _, ses := range lanes[1:] {
			bulk = append(bulk, testutil.Must(ses.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t))
		}
		time.Sleep(firstSample + leastLook/2) // not at the instant of a look
		for len(g.Sessions()) > 1 {
			for _, c := range bulk {
				_, _ = c.Write(make([]byte, bulkBytes)) // it may just have ended
			}
			time.Sleep(leastLook)
		}
		wasBound := bound.Load() > 0
		time.Sleep(2 * sampleEvery)
		synctest.Wait()
		testutil.Equal(t, wasBound, true, "the lane was bound")
		testutil.Equal(t, bound.Load(), 0, "its bound now")
	})
}
