package shares

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
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
			if most := limit + limit + ofAll(counts); s.root.working > most {
				t.Fatalf("%v: %d are young, of %d", counts, s.root.working, limit)
			}
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
			if float64(most-least) > 0.15*float64(most)+20 {
				t.Errorf("%v: clients of tenant %d went %d to %d times", counts, i, least, most)
			}
		}
		for i, n := range went {
			if part := total / len(counts); n < part*9/10-20 || n > part*11/10+20 {
				t.Errorf("%v: tenant %d went %d times of %d", counts, i, n, total)
			}
		}
		for range limit + limit + ofAll(counts) {
			for _, of := range all { // all give up, and the rest ages
				for _, a := range of {
					for a.heard(); len(a.turns) > 0; a.turns = a.turns[1:] {
						if !s.Leave(a.line, a.turns[0]) {
							t.Fatal("a dial that waits is in no line")
						}
					}
					if a.line.working > 0 {
						s.Done(a.line)
					}
				}
			}
		}
		if s.root.working != 0 || len(s.root.waiting) != 0 {
			t.Errorf("%v: %d young and %d waiting are left over", counts, s.root.working, len(s.root.waiting))
		}
		if s.Member("late", 0, time.Time{}.Add(time.Hour)); len(s.groups) != 1 {
			t.Errorf("%v: %d tenants are left", counts, len(s.groups)-1)
		}
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
	if s.root.working != 8 {
		t.Errorf("a thousand clients have %d young dials of 8", s.root.working)
	}
	for range 4 {
		quiet := all[1][0]
		if quiet.ask(s, 1); len(quiet.turns) > 0 {
			t.Fatal("a dial within its tenant's part waits")
		}
	}
	for range 8 { // what the others have beyond their part is not given to them again
		for _, a := range all[0] {
			if a.heard(); a.line.working > 0 && all[0][0].line.in.working > 4 {
				s.Done(a.line)
			}
		}
	}
	if got := all[0][0].line.in.working; got != 4 {
		t.Errorf("a thousand clients have %d young dials beside another's 4 of 8", got)
	}
}
