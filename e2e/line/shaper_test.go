package line_test

import (
	"math"
	"testing"
	"time"

	"konnectivity/e2e/line"
	"konnectivity/internal/testutil"
)

const packet = 1500

var start = time.Unix(0, 0)

// within5 says whether got is want, to 5 %.
func within5(got, want float64) bool { return math.Abs(got-want) <= 0.05*want }

func TestShaperDelays(t *testing.T) {
	s := line.NewShaper(line.Config{Delay: 25 * time.Millisecond}, 0)
	for _, at := range []time.Duration{0, 0, time.Millisecond, time.Second} {
		due, v := s.Admit(start.Add(at), packet)
		testutil.Holds(t, v == line.Carried && due.Sub(start) == at+25*time.Millisecond,
			"sent at %v: %v at %v", at, v, due.Sub(start))
	}
}

func TestShaperKeepsItsRate(t *testing.T) {
	const rate = 50e6
	s := line.NewShaper(line.Config{Rate: rate, Queue: 1 << 20}, 0)
	var last time.Time
	carried := 0
	for at := time.Duration(0); at < time.Second; at += 100 * time.Microsecond { // 120 Mbit/s
		if due, v := s.Admit(start.Add(at), packet); v == line.Carried {
			testutil.Requires(t, !due.Before(last), "a packet overtakes another at %v", at)
			last = due
			carried++
		}
	}
	got := float64(carried*packet*8) / last.Sub(start).Seconds()
	testutil.Holds(t, within5(got, rate), "carries %.0f bit/s, want %.0f", got, rate)
}

func TestShaperQueues(t *testing.T) {
	const queue = 100 * packet
	cfg := line.Config{Rate: 12e6, Queue: queue} // 1 ms a packet
	s := line.NewShaper(cfg, 0)
	waits := 0
	for range 200 {
		if _, v := s.Admit(start, packet); v == line.Carried {
			waits++
		} else if v != line.Dropped {
			t.Fatalf("verdict %v", v)
		}
	}
	testutil.Equal(t, waits, 100, "packets that wait")
	// Ten are sent in 10 ms, and make room for as many.
	for i := range 11 {
		_, v := s.Admit(start.Add(10*time.Millisecond), packet)
		testutil.Equal(t, v == line.Carried, i < 10, "packet %d behind a full queue is carried", i)
	}
}

func TestShaperLoses(t *testing.T) {
	const n = 200_000
	count := func(seed, stream uint64) (lost int, pattern uint64) {
		s := line.NewShaper(line.Config{Loss: 0.01, Seed: seed}, stream)
		for i := range n {
			if _, v := s.Admit(start, packet); v == line.Lost {
				lost++
				pattern = pattern*31 + uint64(i)
			}
		}
		return lost, pattern
	}
	lost, pattern := count(1, 0)
	testutil.Holds(t, within5(float64(lost), 0.01*n), "lost %d of %d, want 1 %%", lost, n)
	_, again := count(1, 0)
	testutil.Holds(t, again == pattern, "the same seed lost other packets")
	if _, other := count(1, 1); other == pattern {
		t.Error("both directions lose the same packets")
	}
	if _, other := count(2, 0); other == pattern {
		t.Error("another seed loses the same packets")
	}
}

// A hole takes larger packets, and no others.
func TestShaperHasAHole(t *testing.T) {
	s := line.NewShaper(line.Config{Hole: 1300}, 0)
	for size, want := range map[int]line.Verdict{1300: line.Carried, 1301: line.Lost} {
		_, v := s.Admit(start, size)
		testutil.Equal(t, v, want, "a packet of %d bytes is", size)
	}
}

func TestDefaultQueueIsTheBandwidthDelayProduct(t *testing.T) {
	testutil.Equal(t, (line.Config{Rate: 200e6, Delay: 25 * time.Millisecond}).DefaultQueue(), 1_250_000,
		"200 Mbit/s × 50 ms")
	got := (line.Config{}).DefaultQueue()
	testutil.Holds(t, got > 0, "a line without delay queues %d bytes", got)
}
