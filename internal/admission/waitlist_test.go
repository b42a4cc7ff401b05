package admission

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

func at(address string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(address), Port: 1} }

// in is a waiting connection, by source, weight and seconds of age.
type in struct {
	from   string
	weight int64
	age    int
}

func (l *waitList) groupCount() (n int) {
	for _, c := range l.classes {
		n += len(c.heap)
	}
	return n
}

func TestWaitListNext(t *testing.T) {
	for _, tc := range []struct {
		name    string
		waiting []in
		want    []int // in order
	}{
		{"nobody", nil, nil},
		{"of one source the longest waiting", []in{{"10.0.0.1", 1, 5}, {"10.0.0.1", 9, 1}, {"10.0.0.1", 1, 3}}, []int{0, 2, 1}},
		{"the source with most", []in{{"10.0.0.1", 5, 9}, {"10.0.0.2", 5, 2}, {"10.0.0.2", 5, 1}}, []int{1, 0, 2}},
		{"most by weight", []in{{"10.0.0.1", 5, 9}, {"10.0.0.2", 1, 2}, {"10.0.0.2", 1, 1}}, []int{0, 1, 2}},
		{"of kinds the one that weighs most", []in{{"10.0.0.1", 4 << 10, 9}, {"10.0.0.1", 1, 3}, {"10.0.0.1", 4 << 10, 2}, {"10.0.0.1", 16 << 10, 1}}, []int{3, 0, 2, 1}},
		{"whom a flood passed on the way", []in{{"10.0.0.1", 32 << 10, 9}, {"10.0.0.1", 20 << 10, 2}, {"10.0.0.1", 20 << 10, 1}}, []int{1, 0, 2}},
		{"of a flood from everywhere one, and not who got farther", []in{{"10.0.0.9", 40 << 10, 9}, {"10.0.0.1", 15 << 10, 3}, {"10.0.0.2", 15 << 10, 2}, {"10.0.0.3", 15 << 10, 1}}, []int{1, 0, 2, 3}},
		{"alike, so the longest waiting", []in{{"10.0.0.1", 5, 1}, {"10.0.0.2", 5, 3}, {"10.0.0.3", 5, 2}}, []int{1, 2, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l waitList
			slots := make([]*Slot, len(tc.waiting))
			oldest := 10
			for now := oldest; now >= 0; now-- { // the oldest comes first
				for i, c := range tc.waiting {
					if c.age == now {
						slots[i] = &Slot{}
						l.add(slots[i], SourceOf(at(c.from)), c.weight)
					}
				}
				time.Sleep(time.Second)
			}
			var order []int
			for next := l.next(true); next != nil; next = l.next(true) {
				order = append(order, slices.Index(slots, next))
				l.remove(next)
			}
			testutil.EqualSlices(t, order, tc.want, "%s", tc.name)
			testutil.Holds(t, l.count == 0 && l.weight == 0 && len(l.groups) == 0 && l.groupCount() == 0,
				"%s: left over: %+v", tc.name, l)
		})
	}
}

func TestProgressRestartsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l waitList
		a, b := &Slot{}, &Slot{}
		from := SourceOf(at("10.0.0.1"))
		l.add(a, from, 1)
		time.Sleep(time.Second)
		l.add(b, from, 1)
		time.Sleep(time.Second)
		l.renew(a)
		testutil.Equal(t, l.next(true), b, "who got on is the first to go")
	})
}

// Whatever happens to a line, it adds up, and who is next is who a plain look at
// all of them finds.
func TestWaitListMatchesModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		var l waitList
		var all []*Slot
		for range 3000 {
			time.Sleep(time.Millisecond)
			switch i := random.IntN(max(1, len(all))); {
			case len(all) == 0 || random.IntN(3) == 0:
				s := &Slot{}
				l.add(s, SourceOf(at(fmt.Sprintf("10.0.0.%d", random.IntN(8)))), random.Int64N(9*classUnit))
				all = append(all, s)
			case random.IntN(3) == 0:
				l.remove(all[i])
				all = slices.Delete(all, i, i+1)
			case random.IntN(2) == 0:
				l.weigh(all[i], random.Int64N(9*classUnit))
			default:
				l.renew(all[i])
			}
			total, of, class := int64(0), map[*group]int64{}, map[int]int64{}
			for _, s := range all {
				total += s.weight
				of[s.group] += s.weight
				class[s.group.kind.class] += s.weight
			}
			testutil.Requires(t, l.count == len(all) && l.weight == total && len(l.groups) == len(of) && l.groupCount() == len(of),
				"%d of %d bytes by %d sources, want %d of %d by %d", l.count, l.weight, len(l.groups), len(all), total, len(of))
			next := l.next(true)
			for _, s := range all {
				mine, its := s.group.kind.class, next.group.kind.class
				testutil.Requires(t, class[mine] <= class[its] && (mine != its || of[s.group] <= of[next.group]) &&
					(s.group != next.group || !s.since.Before(next.since)), "somebody else is next")
			}
		}
	})
}

func TestShares(t *testing.T) {
	for descriptors, want := range map[int]Shares{
		0:       {},
		16:      {Unproven: 4, Clients: 8, Relayed: 4, Pooled: 2, Destinations: 12, Dialed: 14, Observers: 4},
		256:     {Unproven: 64, Clients: 128, Relayed: 64, Pooled: 16, Destinations: 192, Dialed: 224, Observers: 8},
		1024:    {Unproven: 256, Clients: 512, Relayed: 256, Pooled: 64, Destinations: 768, Dialed: 896, Observers: 32},
		1 << 20: {Unproven: 1 << 18, Clients: 1 << 19, Relayed: 1 << 18, Pooled: 1 << 16, Destinations: 3 << 18, Dialed: 7 << 17, Observers: 1 << 15},
	} {
		testutil.Equal(t, ShareOut(descriptors), want, "ShareOut(%d)", descriptors)
	}
	for _, tc := range [][3]int{{0, 0, 0}, {5, 0, 5}, {0, 5, 5}, {3, 5, 3}, {5, 3, 3}} {
		testutil.Equal(t, AtMost(tc[0], tc[1]), tc[2], "AtMost(%d, %d)", tc[0], tc[1])
	}
	testutil.AtLeast(t, Descriptors(), 0, "fewer than no descriptors")
}

// One source, whatever it holds, keeps nobody else out, and is not kept out.
func TestBytesAreSharedBySource(t *testing.T) {
	s := NewSlots[*conn](Limits{Bytes: 100, Each: 10})
	var flood []*conn
	for range 50 {
		g := &conn{}
		ok, _ := s.Take(g, at("10.0.0.1"))
		testutil.Requires(t, ok, "no room")
		flood = append(flood, g)
	}
	honest := &conn{}
	s.Take(honest, at("10.0.0.2"))
	s.Weigh(honest, 30)
	for range 50 {
		s.Take(&conn{}, at("10.0.0.1"))
	}
	testutil.Holds(t, !honest.abandoned && s.Serve(honest) == nil, "a flood took the place of another source")
	n, bytes := s.Held()
	testutil.Holds(t, bytes <= 100 && n == 7, "%d wait with %d bytes", n, bytes)
	for i, g := range flood {
		testutil.Holds(t, g.abandoned, "%d keeps its place", i)
	}
}

func TestWeightEvicts(t *testing.T) {
	s := NewSlots[*conn](Limits{Bytes: 100, Each: 10})
	small, big := &conn{}, &conn{}
	s.Take(small, at("10.0.0.1"))
	s.Take(big, at("10.0.0.2"))
	s.Weigh(big, 90)
	testutil.Holds(t, !small.abandoned && !big.abandoned, "evicted although there is room")
	s.Weigh(big, 91)
	testutil.Holds(t, !small.abandoned && big.abandoned && s.Evicted(big) && !s.Renew(big),
		"who takes more than there is room for has to go")
	s.Weigh(big, 1000) // it has no weight any more
	n, bytes := s.Held()
	testutil.Holds(t, n == 1 && bytes == 10 && s.Count() == 1, "%d of %d wait with %d bytes", n, s.Count(), bytes)
	s.Release(big)
	s.Release(small)
	n, bytes = s.Held()
	testutil.Holds(t, n == 0 && bytes == 0 && s.Count() == 0, "at the end %d of %d wait with %d bytes", n, s.Count(), bytes)
}

// Many that come at once may weigh more than those of a flood, which is known by
// those that had to go.
func TestABurstIsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots[*conn](Limits{Bytes: 100, Burst: 200, Each: 10})
		come := func(n int) (gone int) {
			all := make([]*conn, n)
			for i := range all {
				all[i] = &conn{}
				s.Take(all[i], at("10.0.0.1"))
			}
			for _, g := range all {
				if g.abandoned {
					gone++
				}
			}
			return gone
		}
		testutil.Equal(t, come(20), 0, "connections of a burst that had to go")
		come(1)
		n, bytes := s.Held()
		testutil.Holds(t, n == 10 && bytes == 100, "in a flood %d wait with %d bytes", n, bytes)
		time.Sleep(strictFor / 2)
		come(1)
		time.Sleep(strictFor / 2)
		testutil.Equal(t, come(2), 0, "the newest had to go")
		n, _ = s.Held()
		testutil.Holds(t, n == 10, "a flood that goes on is let have more: %d wait", n)
		time.Sleep(strictFor + time.Second)
		come(10)
		testutil.Equal(t, s.Count(), 20, "after the flood wait")
	})
}

func TestWaitingIsBoundedApartFromOpen(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 10, Waiting: 2})
	served := &conn{}
	s.Take(served, nil)
	_ = s.Serve(served)
	for range 5 {
		ok, _ := s.Take(&conn{}, nil)
		testutil.Holds(t, ok, "no room")
	}
	n, _ := s.Held()
	testutil.Holds(t, n == 2 && s.Count() == 3 && !served.abandoned, "%d of %d wait", n, s.Count())
}
