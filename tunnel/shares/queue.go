package shares

import (
	"slices"
	"time"
)

// Queue decides whose work starts next: that of the group with the least work in
// progress, and in the group that of the member with the least. Members that wait
// do so in order. It has no lock and no clock.
//
// Up to limit pieces of work are in progress, and more while a member or group has less
// than its part of limit: groups have equal parts, however many members each has; the
// members of a single group have equal parts of all. A single member never waits.
type Queue[G, M comparable] struct {
	limit  int
	forget time.Duration // after which a member without work no longer competes

	root     level
	groups   map[G]*group[M]
	reviewed time.Time // when those that no longer compete were last removed
}

// group is the members of one group.
type group[M comparable] struct {
	level
	members map[M]*Member
}

// level is a node of the tree that root, groups and members form.
type level struct {
	in      *level
	peers   int      // that are in it and compete
	working int      // pieces of work in progress
	waiting []*level // of those in it, the ones with work that waits, in turn
	member  *Member  // nil: it is none
}

// Member is one that has work. Only its Queue uses it.
type Member struct {
	level
	turns []chan struct{} // of the work that waits; closed when it starts
	last  time.Time
}

// NewQueue returns a Queue for limit pieces of work at a time. A member competes
// until the time forget has passed since its last work.
func NewQueue[G, M comparable](limit int, forget time.Duration) *Queue[G, M] {
	return &Queue[G, M]{limit: limit, forget: forget, groups: make(map[G]*group[M])}
}

// Member returns a member of a group, which competes from now on.
func (q *Queue[G, M]) Member(of G, who M, now time.Time) *Member {
	if now.Sub(q.reviewed) > q.forget/4 {
		q.review(now)
	}
	g := q.groups[of]
	if g == nil {
		g = &group[M]{level: level{in: &q.root}, members: make(map[M]*Member)}
		q.groups[of] = g
		q.root.peers++
	}
	m := g.members[who]
	if m == nil {
		m = &Member{level: level{in: &g.level}}
		m.member = m
		g.members[who] = m
		g.peers++
	}
	m.last = now
	return m
}

// review removes members that no longer compete, and groups without members.
func (q *Queue[G, M]) review(now time.Time) {
	q.reviewed = now
	for name, g := range q.groups {
		for who, m := range g.members {
			if now.Sub(m.last) > q.forget && m.working == 0 && len(m.turns) == 0 {
				delete(g.members, who)
				g.peers--
			}
		}
		if g.peers == 0 {
			delete(q.groups, name)
			q.root.peers--
		}
	}
}

// Enter starts a piece of m's work and returns nil, or returns a channel that is closed
// when the work may start.
func (q *Queue[G, M]) Enter(m *Member) (turn chan struct{}) {
	if len(m.turns) == 0 && q.mayStart(m) {
		m.count(1)
		return nil
	}
	if len(m.turns) == 0 {
		if len(m.in.waiting) == 0 {
			q.root.waiting = append(q.root.waiting, m.in)
		}
		m.in.waiting = append(m.in.waiting, &m.level)
	}
	turn = make(chan struct{})
	m.turns = append(m.turns, turn)
	return turn
}

// Leave removes work that waits for turn, and reports whether it was still waiting.
func (q *Queue[G, M]) Leave(m *Member, turn chan struct{}) bool {
	i := slices.Index(m.turns, turn)
	if i < 0 {
		return false
	}
	m.turns = slices.Delete(m.turns, i, i+1)
	m.settle()
	return true
}

// Done ends a piece of m's work, and starts what may start now.
func (q *Queue[G, M]) Done(m *Member) {
	m.count(-1)
	for next := q.next(&q.root); next != nil; next = q.next(&q.root) {
		turn := next.turns[0]
		next.turns = next.turns[1:]
		next.count(1)
		for l := &next.level; l.in != nil; l = l.in { // behind those with as little work
			l.in.waiting = append(without(l.in.waiting, l), l)
		}
		next.settle()
		close(turn)
	}
}

// Working returns how many pieces of work are in progress, and whether any waits.
func (q *Queue[G, M]) Working() (n int, waiting bool) {
	return q.root.working, len(q.root.waiting) > 0
}

// mayStart reports whether m's next work need not wait: there is room, m or its
// group has less than its part, or m is the only member.
func (q *Queue[G, M]) mayStart(m *Member) bool {
	if q.root.working < q.limit {
		return true
	}
	for _, l := range [...]*level{m.in, &m.level} {
		if n := l.in.peers; n > 1 {
			return l.working < max(1, q.limit/n)
		}
	}
	return true
}

// next returns the member in l whose work starts next; nil: nothing waits, or all
// have their parts.
func (q *Queue[G, M]) next(l *level) (first *Member) {
	if l.member != nil {
		if q.mayStart(l.member) {
			return l.member
		}
		return nil
	}
	least := 0
	for _, of := range l.waiting {
		if first == nil || of.working < least {
			if m := q.next(of); m != nil {
				first, least = m, of.working
			}
		}
	}
	return first
}

// count adds n to the work in progress of m, its group and all.
func (m *Member) count(n int) {
	for l := &m.level; l != nil; l = l.in {
		l.working += n
	}
}

// settle removes m from those that wait, and its group, if nothing of theirs waits.
func (m *Member) settle() {
	if len(m.turns) > 0 {
		return
	}
	m.turns = nil
	m.in.waiting = without(m.in.waiting, &m.level)
	if len(m.in.waiting) == 0 {
		m.in.in.waiting = without(m.in.in.waiting, m.in)
	}
}

// without removes l, which is in of.
func without(of []*level, l *level) []*level {
	i := slices.Index(of, l)
	return slices.Delete(of, i, i+1)
}
