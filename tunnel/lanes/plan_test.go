package lanes

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// Lanes come once two looks in a row have seen bulk on a far line that is full, or that
// has been losing segments for three, and go 45 s after the last bulk.
func TestPlan(t *testing.T) {
	const ms = time.Millisecond
	bad := sample{bulk: 1, held: true, lost: true, rtt: 50 * ms}
	full := sample{bulk: 3, rate: 20 * fullTrip, rtt: 50 * ms}
	fast := sample{bulk: 8, rate: fastRate, rtt: ms / 10}
	with := func(s sample, change func(*sample)) sample { change(&s); return s }
	idle := sample{rtt: 50 * ms}
	type step struct {
		after time.Duration
		s     sample
		want  int
	}
	after := func(looks int, s sample, want int) (steps []step) {
		for range looks {
			steps = append(steps, step{time.Second, s, 1})
		}
		return append(steps, step{time.Second, s, want})
	}
	twice := func(s sample, want int) []step { return after(1, s, want) }
	lossy := func(s sample, want int) []step { return after(lostSamples, s, want) }
	for _, c := range []struct {
		name  string
		max   int
		steps []step
	}{
		{"fast, on six cores", 8, twice(fast, 3)},
		{"not quite", 8, twice(with(fast, func(s *sample) { s.rate-- }), 1)},
		{"fast, and alone", 8, twice(with(fast, func(s *sample) { s.bulk = 1 }), 1)},
		{"idle", 4, []step{{0, idle, 1}, {time.Second, idle, 1}, {time.Hour, idle, 1}}},
		{"small beside bulk that loses segments", 4, append(lossy(bad, 2), step{time.Second, bad, 2})},
		{"small beside much of it", 8, lossy(with(bad, func(s *sample) { s.bulk = 8 }), 2)},
		{"bulk on a full lane", 8, twice(full, 4)},
		{"more of it than lanes", 3, twice(full, 3)},
		{"first the one, then the other", 8, append(lossy(bad, 2), step{time.Second, full, 2}, step{time.Second, full, 4}, step{time.Second, bad, 4})},
		{"full for one look at a time", 8, append(lossy(bad, 2), step{time.Second, full, 2}, step{time.Second, bad, 2}, step{time.Second, full, 2})},
		{"not quite full", 8, twice(with(full, func(s *sample) { s.rate-- }), 1)},
		{"full for a line that loses segments", 8, lossy(with(full, func(s *sample) { s.rate, s.lost = 20*lossyTrip, true }), 4)},
		{"not quite", 8, lossy(with(full, func(s *sample) { s.rate, s.lost = 20*lossyTrip-1, true }), 1)},
		{"full, and alone", 8, twice(with(full, func(s *sample) { s.bulk = 1 }), 1)},
		{"full and near", 8, lossy(with(full, func(s *sample) { s.rate, s.lost, s.rtt = 250*lossyTrip, true, far-1 }), 1)},
		{"full and alone, beside small", 8, twice(with(full, func(s *sample) { s.bulk, s.held = 1, true }), 1)},
		{"fast, but for a look in between", 8, append([]step{{0, fast, 1}, {time.Second, with(fast, func(s *sample) { s.rate-- }), 1}}, twice(fast, 3)...)},
		{"losses without bulk", 4, append(after(lostSamples, with(idle, func(s *sample) { s.lost = true }), 1), lossy(bad, 2)...)},
		{"switched off", 1, lossy(bad, 1)},
		{"no loss", 4, lossy(with(bad, func(s *sample) { s.lost = false }), 1)},
		{"a look without loss in between", 4, append(append(after(lostSamples-2, bad, 1), step{time.Second, with(bad, func(s *sample) { s.lost = false }), 1}), lossy(bad, 2)...)},
		{"a look without loss on a lossy line", 4, append(after(lostSamples-1, bad, 1), step{time.Second, with(bad, func(s *sample) { s.lost = false }), 2})},
		{"known to be lossy", 4, append(after(lostSamples-1, with(bad, func(s *sample) { s.held = false }), 1), step{keepFor - time.Second, idle, 1}, step{0, bad, 1}, step{time.Second - 1, bad, 2})},
		{"known no longer", 4, append(after(lostSamples-1, with(bad, func(s *sample) { s.held = false }), 1), step{keepFor, idle, 1}, step{0, bad, 1}, step{1, bad, 1}, step{1, bad, 1}, step{1, bad, 2})},
		{"bulk alone", 4, append(lossy(with(bad, func(s *sample) { s.held = false }), 1), step{time.Second, bad, 2})},
		{"near", 4, lossy(with(bad, func(s *sample) { s.rtt = 4 * ms }), 1)},
		{"a pause in between", 4, append(append(after(lostSamples-2, bad, 1), step{time.Second, idle, 1}), lossy(bad, 2)...)},
		{"gone after bulk", 4, append(append(lossy(bad, 2), step{keepFor - 1, idle, 2}, step{1, idle, 1}), lossy(bad, 2)...)},
		{"gone without a look meanwhile", 4, append(lossy(bad, 2), step{keepFor, with(bad, func(s *sample) { s.lost = false }), 1})},
		{"kept by bulk without loss", 4, append(lossy(bad, 2), step{keepFor - 1, with(bad, func(s *sample) { s.lost = false }), 2}, step{keepFor - 1, idle, 2})},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan{max: c.max, cores: 6}
			now := time.Unix(1e9, 0)
			for i, step := range c.steps {
				now = now.Add(step.after)
				testutil.Equal(t, p.update(now, step.s), step.want, "lanes at step %d", i)
			}
		})
	}
}

// On few cores, the core of a connection is not what a fast one waits for.
func TestFastOnFewCores(t *testing.T) {
	fast := sample{bulk: 8, rate: fastRate}
	for cores, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 16: 8, 64: 9} {
		testutil.Equal(t, fast.lanes(cores, false), want, "lanes on %d cores", cores)
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name  string
		lanes []load
		want  int
	}{
		{"nowhere", nil, -1},
		{"all gone", []load{{gone: true}, {gone: true}}, -1},
		{"the only one", []load{{bulk: 9}}, 0},
		{"the first of equals", []load{{bulk: 1}, {bulk: 1}}, 0},
		{"the least bulk", []load{{bulk: 2}, {bulk: 1}, {bulk: 3}}, 1},
		{"not one that is gone", []load{{bulk: 2}, {gone: true}}, 0},
		{"not one that leaves", []load{{bulk: 2}, {leaves: true}}, 0},
		{"one that leaves, if there is no other", []load{{gone: true}, {bulk: 1, leaves: true}}, 1},
	} {
		testutil.Equal(t, place(c.lanes), c.want, "%s", c.name)
	}
}

// Bulk goes anywhere but on the first lane, while there is another.
func TestPlaceBulk(t *testing.T) {
	for _, c := range []struct {
		name  string
		lanes []load
		want  int
	}{
		{"nowhere", nil, -1},
		{"the only one", []load{{}}, 0},
		{"not the first", []load{{}, {bulk: 1}}, 1},
		{"the best of the others", []load{{}, {bulk: 2}, {bulk: 1}, {gone: true}}, 2},
		{"the others leave", []load{{bulk: 3}, {leaves: true}}, 0},
		{"the others are gone", []load{{bulk: 3}, {gone: true}}, 0},
	} {
		testutil.Equal(t, placeBulk(c.lanes), c.want, "%s", c.name)
	}
}

// Bulk leaves the first lane only for those that placeBulk would take.
func TestTakers(t *testing.T) {
	for _, c := range []struct {
		lanes []load
		want  int
	}{
		{nil, 0},
		{[]load{{}}, 0},
		{[]load{{}, {bulk: 9}, {}}, 2},
		{[]load{{gone: true}, {leaves: true}, {gone: true}, {}}, 1},
	} {
		testutil.Equal(t, takers(c.lanes), c.want, "%+v", c.lanes)
	}
}

func TestLeaving(t *testing.T) {
	for _, c := range []struct {
		first  amount
		bulk   []int // of the other lanes
		others int
		want   []int
	}{
		{amount{}, []int{0}, 1, []int{0, 0}},
		{amount{small: 5}, []int{0}, 1, []int{0, 0}},
		{amount{bulk: 1}, []int{0}, 1, []int{0, 0}}, // alone
		{amount{bulk: 1, small: 1}, []int{0}, 1, []int{1, 0}},
		{amount{bulk: 2, small: 1}, []int{0}, 1, []int{2, 0}},
		{amount{bulk: 2}, []int{0}, 1, []int{1, 0}},       // one for each lane
		{amount{bulk: 2}, []int{0, 0}, 2, []int{2, 0, 0}}, // the others have room
		{amount{bulk: 8}, make([]int, 7), 7, []int{7, 0, 0, 0, 0, 0, 0, 0}},
		{amount{bulk: 8, small: 1}, make([]int, 7), 7, []int{8, 0, 0, 0, 0, 0, 0, 0}},
		{amount{bulk: 8, small: 1}, []int{0}, 0, []int{0, 0}}, // the other takes none
		{amount{bulk: 8, small: 1}, nil, 1, []int{8}},         // it has joined since
		{amount{}, []int{5}, 1, []int{0, 0}},
		{amount{}, []int{5}, 4, []int{0, 3}}, // three have joined since
		{amount{}, []int{5, 0, 0}, 3, []int{0, 3, 0, 0}},
		{amount{}, []int{2, 1, 2}, 3, []int{0, 0, 0, 0}},
		{amount{bulk: 3, small: 1}, []int{3, 0}, 2, []int{3, 0, 0}}, // which go to the lane that has none
		{amount{}, []int{2, 0, 0, 0, 0, 0, 0}, 7, []int{0, 1, 0, 0, 0, 0, 0, 0}},
	} {
		c.first.first = true
		lanes := []amount{c.first}
		for _, n := range c.bulk {
			lanes = append(lanes, amount{bulk: n, small: 9})
		}
		testutil.EqualSlices(t, leaving(lanes, c.others), c.want, "%v and %v of %d", c.first, c.bulk, c.others)
	}
}

func TestCheckMax(t *testing.T) {
	for n, fine := range map[int]bool{-1: false, 0: false, 1: true, MaxLanes: true, MaxLanes + 1: false} {
		testutil.Equal(t, CheckMax(n) == nil, fine, "%d is fine", n)
	}
}

// What lines get lanes, and for how long, is what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/operations.md"
	testutil.Says(t, page, "On a line that is far (%v ms or more)", far.Milliseconds())
	testutil.Says(t, page, "carry %v MiB/s over one connection", fastRate>>20)
	testutil.Says(t, page, "Lanes close %v s after", int64(keepFor/time.Second))
}
