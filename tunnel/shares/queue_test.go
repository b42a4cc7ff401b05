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
