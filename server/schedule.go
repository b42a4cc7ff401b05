package server

import (
	"math"
	"slices"
	"time"

	"konnectivity/tunnel"
)

// schedule says whose dial goes next: one of the tenant that has the fewest young
// dials, and of its client that has the fewest. It has no lock and no clock.
type schedule struct {
	limit int // of young dials, while some compete

	tenants  map[string]*tenantLines // that dialed of late
	waiting  []*tenantLines          // those of which dials wait
	young    int                     // of all tenants
	reviewed time.Time               // when those that no longer compete were last struck out
}

// tenantLines are the lines of one tenant's clients; of a server without tenants,
// of all.
type tenantLines struct {
	name    string
	clients map[*tunnel.Client]*line // that dialed of late
	waiting []*line                  // those in which dials wait
	young   int
}

// line is one client's dials.
type line struct {
	tenant  *tenantLines
	young   int
	waiting []chan struct{} // closed when it is their turn; first come, first served
	last    time.Time
}

// line is who's, which is noted to compete.
func (s *schedule) line(who *tunnel.Client, now time.Time) *line {
	if now.Sub(s.reviewed) > competesFor/4 {
		s.reviewed = now
		s.review(now)
	}
	t := s.tenants[who.Tenant]
	if t == nil {
		if s.tenants == nil {
			s.tenants = make(map[string]*tenantLines)
		}
		t = &tenantLines{name: who.Tenant, clients: make(map[*tunnel.Client]*line)}
		s.tenants[who.Tenant] = t
	}
	l := t.clients[who]
	if l == nil {
		l = &line{tenant: t}
		t.clients[who] = l
	}
	l.last = now
	return l
}

// review strikes out clients that dial no more, and tenants without any.
func (s *schedule) review(now time.Time) {
	for name, t := range s.tenants {
		for who, l := range t.clients {
			if now.Sub(l.last) > competesFor && l.young == 0 && len(l.waiting) == 0 {
				delete(t.clients, who)
			}
		}
		if len(t.clients) == 0 {
			delete(s.tenants, name)
		}
	}
}

// part is what each of n that compete may have of limit. One alone may have
// anything.
func part(limit, n int) int {
	if n > 1 {
		return max(1, limit/n)
	}
	return math.MaxInt
}

// mayGo says whether a client's next dial is not to wait: it has not had its
// part, or nobody else makes use of theirs. While tenants compete their parts
// count, however many clients each has.
func (s *schedule) mayGo(l *line) bool {
	switch {
	case s.young < s.limit:
		return true
	case len(s.tenants) > 1:
		return l.tenant.young < part(s.limit, len(s.tenants))
	default:
		return l.young < part(s.limit, len(l.tenant.clients))
	}
}

// enter lets a dial go, or returns what is closed when it may.
func (s *schedule) enter(l *line) (turn chan struct{}) {
	if len(l.waiting) == 0 && s.mayGo(l) {
		s.count(l, 1)
		return nil
	}
	turn = make(chan struct{})
	if len(l.waiting) == 0 {
		if len(l.tenant.waiting) == 0 {
			s.waiting = append(s.waiting, l.tenant)
		}
		l.tenant.waiting = append(l.tenant.waiting, l)
	}
	l.waiting = append(l.waiting, turn)
	return turn
}

// leave takes a dial out of its line, and says whether it was there.
func (s *schedule) leave(l *line, turn chan struct{}) bool {
	i := slices.Index(l.waiting, turn)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	s.unlist(l)
	return true
}

// aged counts a dial as young no more, and lets the next ones go.
func (s *schedule) aged(l *line) {
	s.count(l, -1)
	for next := s.next(); next != nil; next = s.next() {
		turn := next.waiting[0]
		next.waiting = next.waiting[1:]
		s.count(next, 1)
		s.relist(next)
		close(turn)
	}
}

// count counts n more dials of a client as young.
func (s *schedule) count(l *line, n int) {
	l.young += n
	l.tenant.young += n
	s.young += n
}

// next is the line whose turn it is; nil: nobody waits, or all have their parts.
func (s *schedule) next() *line {
	var next *line
	for _, t := range s.waiting {
		if next != nil && t.young >= next.tenant.young {
			continue
		}
		if l := s.nextOf(t); l != nil {
			next = l
		}
	}
	return next
}

// nextOf is the line of one tenant whose turn it is, if any may go.
func (s *schedule) nextOf(t *tenantLines) *line {
	var next *line
	for _, l := range t.waiting {
		if (next == nil || l.young < next.young) && s.mayGo(l) {
			next = l
		}
	}
	return next
}

// relist puts a client, and its tenant, behind the others that wait, of those with
// as few young dials.
func (s *schedule) relist(l *line) {
	t := l.tenant
	s.waiting = toEnd(s.waiting, t)
	t.waiting = toEnd(t.waiting, l)
	s.unlist(l)
}

// unlist forgets a line in which nobody waits any more, and a tenant of which
// nobody does.
func (s *schedule) unlist(l *line) {
	if len(l.waiting) > 0 {
		return
	}
	l.waiting = nil
	t := l.tenant
	t.waiting = without(t.waiting, l)
	if len(t.waiting) == 0 {
		s.waiting = without(s.waiting, t)
	}
}

func toEnd[T comparable](of []T, v T) []T { return append(without(of, v), v) }

func without[T comparable](of []T, v T) []T {
	if i := slices.Index(of, v); i >= 0 {
		return slices.Delete(of, i, i+1)
	}
	return of
}
