// Package shares divides what is scarce among clients: pending dials, open
// connections, streams, bytes. Who comes alone may have nearly all of it, and
// whoever comes later still finds some, without anything being set aside or
// taken back.
//
// The rule is that of a shared switch buffer (Choudhury and Hahne, "Dynamic
// queue length thresholds", 1998): a client may have more while it has less than
// Eagerness times what is free. One that wants all gets 8/9 of it; of n that do,
// each gets 8/(8n+1), so more than 1/(n+1); and 1/(8n+1) is there for the next.
package shares

import "sync/atomic"

// Eagerness is how many times what is free one client may have.
const Eagerness = 8

// Limit is what one client may have while used of max are taken by all.
func Limit(max, used int64) int64 {
	return Eagerness * (max - used)
}

// Pool is what is divided. It may be used from any goroutine.
type Pool struct {
	max  int64
	used atomic.Int64
}

// NewPool returns a pool of max.
func NewPool(max int64) *Pool { return &Pool{max: max} }

// Max is how much there is, taken or free.
func (p *Pool) Max() int64 { return p.max }

// Used is how much all clients have taken.
func (p *Pool) Used() int64 { return p.used.Load() }

// Share returns a new client's part, which is empty. It needs no giving up: an
// empty one takes nothing away.
func (p *Pool) Share() *Share { return &Share{pool: p} }

// Share is what one client has of a pool. It may be used from any goroutine.
type Share struct {
	pool *Pool
	used atomic.Int64
}

// Take takes n more, and says whether the client may have them; Give must
// follow then.
func (s *Share) Take(n int64) bool {
	all, own := s.pool.used.Add(n), s.used.Add(n)
	if all > s.pool.max || own-n >= Limit(s.pool.max, all-n) {
		s.Give(n)
		return false
	}
	return true
}

// Add takes n more without asking, as for bytes that have come already.
func (s *Share) Add(n int64) {
	s.pool.used.Add(n)
	s.used.Add(n)
}

// Give gives n back.
func (s *Share) Give(n int64) { s.Add(-n) }

// Used is how much the client has.
func (s *Share) Used() int64 { return s.used.Load() }

// Pool is what the share is of.
func (s *Share) Pool() *Pool { return s.pool }

// Free is how much nobody has.
func (s *Share) Free() int64 { return s.pool.max - s.pool.used.Load() }
