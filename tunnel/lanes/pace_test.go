package lanes

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// sample lets time pass until the next one, and returns what part of the line was used. The
// queue has room for a round trip.
func (l *paceLine) sample() float64 {
	sends := l.wants
	if l.bound > 0 {
		sends = min(sends, float64(l.bound)*paceLanes)
	}
	grows := time.Duration(float64(sampleEvery) * (sends/l.carries - 1))
	carried := min(sends, l.carries)
	if l.queue > 0 {
		carried = l.carries
	}
	l.queue = min(max(0, l.queue+grows), paceRTT)
	l.now = l.now.Add(sampleEvery)
	l.bound = l.pacer.update(l.now, sending{rates: even(paceLanes, uint64(carried)), least: paceRTT, rtt: paceRTT + l.queue + l.other})
	return carried / l.carries
}

// run returns the mean part of the line, and the mean queue, of so many samples.
func (l *paceLine) run(samples int) (used float64, queue time.Duration) {
	for range samples {
		used += l.sample()
		queue += l.queue
	}
	return used / float64(samples), queue / time.Duration(samples)
}

// Lanes that would keep a round trip of bytes on their line keep little there, and use
// nearly all of it, also once it carries less, or more.
func TestPacedLanesKeepNoQueue(t *testing.T) {
	l := newPaceLine()
	l.run(10)
	for _, carries := range []float64{20e6, 14e6, 24e6} {
		l.carries = carries
		l.run(12)
		if used, queue := l.run(100); used < 0.95 || queue > paceRTT/5 {
			t.Errorf("on a line of %.0f MB/s: %.2f of it is used, the queue lasts %v", carries/1e6, used, queue)
		}
	}
}

// A queue that does not go is another's: lanes leave it at most half of the line, and then a
// minute passes before they leave any again.
func TestPacedLanesKeepTheirPart(t *testing.T) {
	l := newPaceLine()
	for range 12 { // half of the most that there was counts
		l.run(20)
		l.carries *= 1.1
		l.wants *= 1.1
	}
	l.other = paceRTT
	bound, began := 0, l.now
	var rest time.Time
	for l.now.Sub(began) < 3*time.Minute {
		l.sample()
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
		if least := l.carries * (1 - deepestCut) / 2; float64(l.bound)*paceLanes < 0.95*least {
			t.Fatalf("%d B/s for each lane, of %.0f", l.bound, l.carries)
		}
	}
	if all := int(3 * time.Minute / sampleEvery); bound == 0 || bound > all/3 {
		t.Errorf("bound in %d samples of %d", bound, all)
	}
}

// What lanes send is bound only while a queue on a far line is theirs.
func TestLanesArePacedForAQueueOnly(t *testing.T) {
	const ms = time.Millisecond
	queue := sending{rates: even(4, 8e6), least: 100 * ms, rtt: 200 * ms}
	with := func(change func(*sending)) sending { s := queue; change(&s); return s }
	at := func(rate uint64) sending { return with(func(s *sending) { s.rates = even(4, rate) }) }
	none := with(func(s *sending) { s.rtt = s.least + s.least/queuePart })
	slow := with(func(s *sending) { s.rates = []uint64{1e5, 77e5, 1e5, 1e5} })
	const each = 8e6 * (1 - deepestCut) / 4
	for name, samples := range map[string][]struct {
		s    sending
		want uint64
	}{
		"a queue":                          {{queue, 0}, {queue, each}},
		"slow lanes":                       {{slow, 0}, {slow, 8e6*(1-deepestCut) - 3e5}},
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
		for i, sample := range samples {
			now = now.Add(sampleEvery)
			if got := p.update(now, sample.s); got != sample.want {
				t.Errorf("%s, sample %d: %d B/s, want %d", name, i, got, sample.want)
			}
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
		if got := (sending{rates: c.rates}).part(800); got != c.want {
			t.Errorf("%v: %d for each lane, want %d", c.rates, got, c.want)
		}
		if (sending{rates: c.rates}).part(0) != 0 {
			t.Errorf("%v: bound by no line", c.rates)
		}
	}
}

// The lane with the shortest round trip tells the queue. Late segments lengthen that of
// others.
func TestQueueIsTheShortest(t *testing.T) {
	s := sending{least: 50 * time.Millisecond}
	for _, rtt := range []time.Duration{90, 70, 80} {
		s.add(1000, rtt*time.Millisecond)
	}
	if s.queue() != 20*time.Millisecond || s.rate() != 3000 || len(s.rates) != 3 {
		t.Errorf("%v of queue, %d B/s, %d lanes", s.queue(), s.rate(), len(s.rates))
	}
}

// A lane counts as one that sends if it has bulk, and a quarter of it went from here. Small
// streams are not bound, however many there are.
func TestLaneThatSends(t *testing.T) {
	bulk := make([]*link.Stream, 1)
	for _, c := range []struct {
		on   carried
		want bool
	}{
		{carried{bulk: bulk, rate: bulkBytes, sent: bulkBytes}, true},
		{carried{bulk: bulk, rate: bulkBytes, sent: bulkBytes - 1}, false},
		{carried{bulk: bulk, rate: 8 * bulkBytes, sent: 2 * bulkBytes}, true},
		{carried{bulk: bulk, rate: 8 * bulkBytes, sent: 2*bulkBytes - 1}, false},
		{carried{small: 100, rate: 10 * bulkBytes, sent: 10 * bulkBytes}, false},
	} {
		if c.on.sends() != c.want {
			t.Errorf("%+v: want %v", c.on, c.want)
		}
	}
}

// A bound is lifted once what lanes send does not need it: there is no queue, however far it
// is raised.
func TestBoundThatNothingNeedsIsLifted(t *testing.T) {
	l := newPaceLine()
	if l.run(10); l.bound == 0 {
		t.Fatal("not bound")
	}
	l.wants = l.carries / 2
	if l.run(20); l.bound != 0 {
		t.Errorf("%d B/s for each lane", l.bound)
	}
}

// The lanes that send bulk are bound, and free again once they do not.
func TestLanesThatSendBulkArePaced(t *testing.T) {
	withGroup(t, 3, Options{}, func(t *testing.T, r *rig, g *Group) {
		var bounds sync.Map
		g.mu.Lock()
		g.line = func(ses *link.Session) link.Line {
			sent, _ := ses.Moved()
			return link.Line{RTT: 50 * time.Millisecond, SRTT: 100 * time.Millisecond, Acked: sent}
		}
		g.bind = func(ses *link.Session, rate uint64) { bounds.Store(ses, rate) }
		g.mu.Unlock()
		lanes := g.Sessions()
		boundOf := func(ses *link.Session) uint64 {
			rate, _ := bounds.Load(ses)
			return rate.(uint64)
		}
		var bulk []tunnel.Conn
		for _, ses := range lanes[1:] {
			c, err := ses.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80"))
			if err != nil {
				t.Fatal(err)
			}
			bulk = append(bulk, c)
		}
		time.Sleep(firstSample + sampleEvery/2) // not at the instant of a sample
		for range 4 {
			for _, c := range bulk {
				carry(t, c)
			}
			time.Sleep(sampleEvery)
		}
		synctest.Wait()
		for i, ses := range lanes {
			if got := boundOf(ses); (got > 0) != (i > 0) {
				t.Errorf("lane %d is bound to %d B/s", i, got)
			}
		}
		time.Sleep(2 * sampleEvery)
		synctest.Wait()
		for i, ses := range lanes {
			if got := boundOf(ses); got != 0 {
				t.Errorf("lane %d, which sends nothing any more, is bound to %d B/s", i, got)
			}
		}
	})
}
