package lanes

import (
	"fmt"
	"time"
)

const (
	// DefaultMax is how many lanes a Group has at most where nobody said
	// otherwise. With two, small messages wait much less beside bulk on a line that
	// loses segments, but bulk that moves loses some of its rate.
	DefaultMax = 1

	// MaxLanes bounds that: what more would bring is below what can be measured,
	// and each has buffers and a handshake.
	MaxLanes = 8

	// far is the round trip below which a lost segment is sent again so soon that
	// lanes gain nothing.
	far = 5 * time.Millisecond

	// badLooks is how many looks in a row must see bulk and loss before lanes are
	// added: a short transfer, or the overflow of a queue as one begins, is not
	// worth a handshake.
	badLooks = 2

	// keepFor is how long lanes are kept without bulk.
	keepFor = 45 * time.Second
)

// CheckMax says in words what is wrong with a number of lanes that somebody wants.
func CheckMax(n int) error {
	if n < 1 || n > MaxLanes {
		return fmt.Errorf("want a number from 1 (off) to %d", MaxLanes)
	}
	return nil
}

// sample is what a look sees of all lanes together.
type sample struct {
	bulk int           // streams that carried much since the last look
	held bool          // others carried something beside bulk on the first lane
	lost bool          // segments were lost since
	rtt  time.Duration // shortest of all lanes; 0: unknown
}

// plan says how many lanes there should be. It has no clock: callers bring one.
type plan struct {
	max  int
	want int       // 0: as many as 1
	bad  int       // looks in a row that saw bulk and loss
	bulk time.Time // when bulk was seen last
}

// look takes a sample in and returns how many lanes there should be, at least 1:
// one for each bulk stream and one for the small that it holds up, once the line is
// known to lose segments. Bulk alone stays on one, since it loses rate when it moves.
func (p *plan) look(now time.Time, s sample) int {
	if s.bulk == 0 {
		p.bad = 0
		if now.Sub(p.bulk) >= keepFor {
			p.want = 1
		}
		return max(p.want, 1)
	}
	p.bulk = now
	if s.lost && s.rtt >= far {
		p.bad++
	} else {
		p.bad = 0
	}
	if p.bad >= badLooks && s.held {
		p.want = max(p.want, min(1+s.bulk, p.max))
	}
	return max(p.want, 1)
}
