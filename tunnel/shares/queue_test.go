package shares

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// asking is a client that always has dials waiting.
type asking struct {
	line  *Member
	turns []chan struct{} // that wait
	went  int
}

// ask puts n dials more in the line.
func (a *asking) ask(s *Queue[string, int], n int) {
	for range n {
		if turn := s.Enter(a.line); turn == nil {
			a.went++
		} else {
			a.turns = append(a.turns, turn)
		}
	}
}

// heard counts the turns that have come since.
func (a *asking) heard() {
	for len(a.turns) > 0 {
		select {
		case <-a.turns[0]:
			a.went++
			a.turns = a.turns[1:]
		default:
			return
		}
	}
}

// askers makes so many clients of each tenant.
func askers(s *Queue[string, int], now time.Time, counts ...int) (all [][]*asking) {
	for i, n := range counts {
		var of []*asking
		for j := range n {
			of = append(of, &asking{line: s.Member(strconv.Itoa(i), j, now)})
		}
		all = append(all, of)
	}
	return all
}

// TestGroupsHaveEqualTurns, however many clients each has, and so have the
// clients of one; what one does not use the others do.
func TestGroupsHaveEqualTurns(t *testing.T) {
	const limit, rounds = 8, 6000
	for _, counts := range [][]int{{5}, {1, 1}, {1, 100}, {1, 3, 50}} {
		s := NewQueue[string, int](limit, time.Second)
		r := rand.New(rand.NewPCG(3, 4))
		all := askers(s, time.Time{}, counts...)
		var young []*Member // those that went and have yet to age
		for range rounds {
			young = young[:0]
			for _, of := range all {
				for _, a := range of {
					a.heard()
					a.ask(s, 3-len(a.turns))
					for range a.line.working {
						young = append(young, a.line)
					}
				}
			}
			testutil.AtMost(t, s.root.working, limit+limit+ofAll(counts), "%v: young ones", counts)
			s.Done(young[r.IntN(len(young))])
		}
		went := make([]int, len(counts))
		total := 0
		for i, of := range all {
			least, most := rounds, 0
			for _, a := range of {
				a.heard()
				went[i] += a.went
				least, most = min(least, a.went), max(most, a.went)
			}
			total += went[i]
			testutil.AtMost(t, float64(most-least), 0.15*float64(most)+20, "%v: tenant %d: most less least", counts, i)
		}
		for i, n := range went {
			part := total / len(counts)
			testutil.Between(t, n, part*9/10-20, part*11/10+20, "%v: turns of tenant %d", counts, i)
		}
		for range limit + limit + ofAll(counts) {
			for _, of := range all { // all give up, and the rest ages
				for _, a := range of {
					for a.heard(); len(a.turns) > 0; a.turns = a.turns[1:] {
						testutil.Equal(t, s.Leave(a.line, a.turns[0]), true, "a dial that waits is in a line")
					}
					if a.line.working > 0 {
						s.Done(a.line)
					}
				}
			}
		}
		testutil.Equal(t, s.root.working, 0, "%v: young ones left", counts)
		testutil.Equal(t, len(s.root.waiting), 0, "%v: waiting ones left", counts)
		s.Member("late", 0, time.Time{}.Add(time.Hour))
		testutil.Equal(t, len(s.groups), 1, "%v: the late one and tenants left", counts)
	}
}

func ofAll(of []int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

// TestGroupWithManyMembersWaits for its part where another tenant uses its own,
// which never waits for more than one turn.
func TestGroupWithManyMembersWaits(t *testing.T) {
	s := NewQueue[string, int](8, time.Second)
	all := askers(s, time.Time{}, 1000, 1)
	for _, a := range all[0] {
		a.ask(s, 5)
	}
	testutil.Equal(t, s.root.working, 8, "young dials of a thousand clients")
	for range 4 {
		quiet := all[1][0]
		quiet.ask(s, 1)
		testutil.Equal(t, len(quiet.turns), 0, "dials within its tenant's part that wait")
	}
	for range 8 { // what the others have beyond their part is not given to them again
		for _, a := range all[0] {
			if a.heard(); a.line.working > 0 && all[0][0].line.in.working > 4 {
				s.Done(a.line)
			}
		}
	}
	testutil.Equal(t, all[0][0].line.in.working, 4, "young dials of a thousand clients, beside another's 4")
}

// TestMembersAreForgotten once they have had no work for a while: then they take
// nothing from the others' parts any more.
func TestMembersAreForgotten(t *testing.T) {
	const forget = time.Second
	now := time.Time{}.Add(time.Hour)
	s := NewQueue[string, int](2, forget)
	works, waits := &asking{line: s.Member("a", 0, now)}, &asking{line: s.Member("a", 1, now)}
	s.Member("a", 2, now)
	s.Member("b", 0, now)
	works.ask(s, 2)
	waits.ask(s, 1)
	testutil.Equal(t, len(waits.turns), 1, "dials beyond the part of the group that wait")
	s.Member("b", 0, now.Add(forget/2))
	s.Member("c", 0, now.Add(forget))
	testutil.Equal(t, s.root.peers, 3, "groups that compete")
	testutil.Equal(t, works.line.in.peers, 3, "members that compete")
	now = now.Add(forget * 3 / 2)
	same := s.Member("a", 0, now) == works.line && s.Member("a", 1, now) == waits.line
	testutil.Equal(t, same, true, "a member with work is kept")
	testutil.Equal(t, s.root.peers, 3, "groups that have competed lately")
	testutil.Equal(t, works.line.in.peers, 2, "members with work")
	testutil.Equal(t, len(s.groups["a"].members), 2, "members that are kept")
	s.Member("a", 0, now.Add(2*forget))
	testutil.Equal(t, len(s.groups), 1, "groups that are kept")
	testutil.Equal(t, s.root.peers, 1, "groups with work")
}

// TestATurnIsGivenUp: while the dial waits, and not once its turn has come.
func TestATurnIsGivenUp(t *testing.T) {
	s := NewQueue[string, int](1, time.Second)
	all := askers(s, time.Time{}, 1, 1)
	works, waits := all[0][0], all[1][0]
	works.ask(s, 2)
	testutil.Equal(t, s.Leave(works.line, works.turns[0]), true, "a dial that waits leaves")
	n, waiting := s.Working()
	testutil.Equal(t, n, 1, "young dials")
	testutil.Equal(t, waiting, false, "another waits")
	waits.ask(s, 2) // the first within its part
	s.Done(works.line)
	s.Done(waits.line)
	testutil.Equal(t, s.Leave(waits.line, waits.turns[0]), false, "a dial leaves whose turn has come")
}
