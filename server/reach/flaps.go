package reach

import (
	"net/netip"
	"time"

	"konnectivity/tunnel"
)

const (
	// A link that ends flapEnds times, each within flapTime of the one before, flaps: a server
	// that is replaced or restarted ends it once or twice.
	flapEnds = 3
	flapTime = 2 * time.Minute

	// Ends closer together count as one: a server that drains is linked to again, and ends
	// all links as it goes.
	flapApart = time.Second

	// flapQuiet is how long no further link that flaps is logged for the same cause.
	flapQuiet = 10 * time.Minute
)

// flaps are the links that end again and again, so that none is away for quietTime. One
// goroutine uses them.
type flaps struct {
	ends   map[netip.AddrPort]*ends       // nothing of addresses that are gone
	logged map[tunnel.LossCause]time.Time // when a cause was, last
}

// ends counts those of the links to one address.
type ends struct {
	last time.Time
	n    int // so close to one another
}

// flapped notes that a link has ended. If that is to be logged, it returns how many links flap:
// one line counts for all of them.
func (f *flaps) flapped(at netip.AddrPort, cause tunnel.LossCause) (flapping int) {
	now := time.Now()
	e := f.ends[at]
	if e == nil || now.Sub(e.last) > flapTime {
		e = new(ends)
		f.ends[at] = e
	}
	if now.Sub(e.last) < flapApart {
		return 0
	}
	e.last = now
	last, known := f.logged[cause]
	if e.n++; e.n < flapEnds || known && now.Sub(last) < flapQuiet {
		return 0
	}
	f.logged[cause] = now
	for _, e := range f.ends {
		if e.n >= flapEnds && now.Sub(e.last) <= flapTime {
			flapping++
		}
	}
	return flapping
}

// ended notes that a link to an address has ended.
func (s *Servers) ended(at netip.AddrPort, why error) {
	cause := tunnel.LossOf(why)
	if flapping := s.flaps.flapped(at, cause); flapping > 0 {
		s.opts.Log.WithError(why).WithField("server", at.String()).WithField("cause", cause.Label()).WithField("flapping", flapping).
			Warn("the link to another server ends again and again")
	}
}
