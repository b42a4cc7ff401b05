package server

import (
	"konnectivity/tunnel"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// asking is a client that always has dials waiting.
type asking struct {
	line  *line
	turns []chan struct{} // that wait
	went  int
}

// ask puts n dials more in the line.
func (a *asking) ask(s *schedule, n int) {
	for range n {
		if turn := s.enter(a.line); turn == nil {
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
func askers(s *schedule, now time.Time, counts ...int) (all [][]*asking) {
	for i, n := range counts {
		var of []*asking
		for range n {
			of = append(of, &asking{line: s.line(&tunnel.Client{Tenant: strconv.Itoa(i)}, now)})
		}
		all = append(all, of)
	}
	return all
}

// TestTenantsHaveEqualTurns, however many clients each has, and so have the
// clients of one; what one does not use the others do.
func TestTenantsHaveEqualTurns(t *testing.T) {
	const limit, rounds = 8, 6000
	for _, counts := range [][]int{{5}, {1, 1}, {1, 100}, {1, 3, 50}} {
		s := &schedule{limit: limit}
		r := rand.New(rand.NewPCG(3, 4))
		all := askers(s, time.Time{}, counts...)
		var young []*line // those that went and have yet to age
		for range rounds {
			young = young[:0]
			for _, of := range all {
				for _, a := range of {
					a.heard()
					a.ask(s, 3-len(a.turns))
					for range a.line.young {
						young = append(young, a.line)
					}
				}
			}
			if most := limit + limit + ofAll(counts); s.young > most {
				t.Fatalf("%v: %d are young, of %d", counts, s.young, limit)
			}
			s.aged(young[r.IntN(len(young))])
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
						if !s.leave(a.line, a.turns[0]) {
							t.Fatal("a dial that waits is in no line")
						}
					}
					if a.line.young > 0 {
						s.aged(a.line)
					}
				}
			}
		}
		if s.young != 0 || len(s.waiting) != 0 {
			t.Errorf("%v: %d young and %d waiting are left over", counts, s.young, len(s.waiting))
		}
		if s.line(&tunnel.Client{Tenant: "late"}, time.Time{}.Add(time.Hour)); len(s.tenants) != 1 {
			t.Errorf("%v: %d tenants are left", counts, len(s.tenants)-1)
		}
	}
}

func ofAll(of []int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

// TestATenantWithManyClientsWaits for its part where another tenant uses its own,
// which never waits for more than one turn.
func TestATenantWithManyClientsWaits(t *testing.T) {
	s := &schedule{limit: 8}
	all := askers(s, time.Time{}, 1000, 1)
	for _, a := range all[0] {
		a.ask(s, 5)
	}
	if s.young != 8 {
		t.Errorf("a thousand clients have %d young dials of 8", s.young)
	}
	for range 4 {
		quiet := all[1][0]
		if quiet.ask(s, 1); len(quiet.turns) > 0 {
			t.Fatal("a dial within its tenant's part waits")
		}
	}
	for range 8 { // what the others have beyond their part is not given to them again
		for _, a := range all[0] {
			if a.heard(); a.line.young > 0 && all[0][0].line.tenant.young > 4 {
				s.aged(a.line)
			}
		}
	}
	if got := all[0][0].line.tenant.young; got != 4 {
		t.Errorf("a thousand clients have %d young dials beside another's 4 of 8", got)
	}
}
