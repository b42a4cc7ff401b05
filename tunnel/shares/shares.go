// Package shares divides scarce resources among clients: pending dials, open
// connections, streams, bytes. A single client may have nearly all, and one that comes
// later still finds some, without anything being set aside or taken back.
//
// The rule is that of a shared switch buffer (Choudhury and Hahne, "Dynamic
// queue length thresholds", 1998): a client may have more while it has less than
// Eagerness times the free amount. One that wants all gets 8/9 of it; of n that do,
// each gets 8/(8n+1), so more than 1/(n+1); and 1/(8n+1) is there for the next.
//
// A share can be divided again, as among the clients of a tenant. The rule then
// holds twice: for the share in its pool, and for each part of it in what the
// share may have just now. So clients do not gain by being many: of two shares
// that are wanted whole, that with a thousand clients gets at most 9/8 of what
// that with a single one gets, which is the ninth that the latter leaves for
// another client of its own. A client alone gets 64/73 of all instead of 8/9.
//
// It owns counters alone. Servers share out dials and places on their ports by
// it, agents descriptors, and tunnel/link and tunnel/legacy their memory.
package shares

import (
	"math"
	"sync/atomic"
)

const (
	// Eagerness times the free amount is what one client may have.
	Eagerness = 8

	// crumb is the part of a divided share that counts as free in any case: so a
	// client that has next to nothing is not stopped, nor reset, for what other
	// parts of the same share hold, but only with all of it.
	crumb = 1024
)

// Share is what one client has of a Pool, or a whole. It can be divided, by Share: all that
// its parts take counts as taken by it, and it must take nothing itself then. It may be used
// from any goroutine.
type Share struct {
	in    *Share // that it is a part of; nil: it is a whole
	max   int64  // of a whole
	used  atomic.Int64
	bound atomic.Int64 // of a part; 0: none but the rule's
}

// Pool is a Share that is divided.
type Pool = Share

// NewPool returns a whole of max, which is to be divided.
func NewPool(max int64) *Pool { return &Share{max: max} }

// Share returns a new client's part, which is empty. It needs no giving up: an
// empty one takes nothing away.
func (s *Share) Share() *Share { return &Share{in: s} }

// Max is how much there is, taken or free. Of a part it is what that is bounded to, or all
// there is.
func (s *Share) Max() int64 {
	if s.in == nil {
		return s.max
	}
	return s.bounded(s.in.Max())
}

// Used is how much the client has taken, or all its parts have.
func (s *Share) Used() int64 { return s.used.Load() }

// Bound has the client have at most max, however much is free; 0 lifts that. What it has
// beyond it already it keeps. It is not for a whole.
func (s *Share) Bound(max int64) { s.bound.Store(max) }

// bounded is what the client may have where the rule allows limit.
func (s *Share) bounded(limit int64) int64 {
	if bound := s.bound.Load(); bound > 0 {
		return min(limit, bound)
	}
	return limit
}

// free returns the free amount for a part that may have times as much.
func (s *Share) free(times int64) int64 {
	if s.in == nil {
		return s.max - s.Used()
	}
	return rest(s.limit(times), s.Used())
}

// rest is what a share that may have limit leaves to its parts, which have used.
func rest(limit, used int64) int64 { return max(limit-used, limit/crumb) }

// limit returns how much the client may have: the free amount times times.
func (s *Share) limit(times int64) int64 { return s.bounded(times * s.in.free(times)) }

// Take takes n more, and says whether the client may have them; Give must
// follow then.
func (s *Share) Take(n int64) bool {
	_, ok := s.take(n)
	if !ok {
		s.Give(n)
	}
	return ok
}

// take is Take, but leaves n taken where the client may not have it. free is the amount that a
// part of the share found free.
func (s *Share) take(n int64) (free int64, ok bool) {
	own := s.used.Add(n) - n
	if s.in == nil {
		return s.max - own, own+n <= s.max
	}
	free, ok = s.in.take(n)
	limit := s.bounded(Eagerness * free)
	return rest(limit, own), ok && own < limit && own+n <= s.bounded(own+n)
}

// Add takes n more without asking, as for bytes that have come already.
func (s *Share) Add(n int64) {
	for ; s != nil; s = s.in {
		s.used.Add(n)
	}
}

// Give gives n back.
func (s *Share) Give(n int64) { s.Add(-n) }

// Within reports whether the client has less than the free amount times times, and so
// has each share that its own is a part of. Of a share's parts, the largest exceeds
// that first, before the share itself does.
func (s *Share) Within(times int64) bool {
	for ; s.in != nil; s = s.in {
		if s.Used() >= s.limit(times) {
			return false
		}
	}
	return true
}

// Cut is n for a client that has no more than it may, and less in proportion to
// what it has beyond that: 0 when nothing is free.
func (s *Share) Cut(n int64) int64 {
	least := n
	for ; s.in != nil; s = s.in {
		if own, limit := s.Used(), s.limit(Eagerness); own > limit {
			least = min(least, n*max(limit, 0)/max(own, 1))
		}
	}
	return least
}

// Left is how much more the client may have; negative where it has too much.
func (s *Share) Left() int64 {
	left := int64(math.MaxInt64)
	for ; s.in != nil; s = s.in {
		left = min(left, s.in.free(Eagerness), s.limit(Eagerness)-s.Used())
	}
	return left
}
