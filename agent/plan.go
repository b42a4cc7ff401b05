package agent

import (
	"math/rand/v2"
	"time"
)

const (
	// maxSearch bounds the attempts under way for servers that are missing,
	// beyond one for each address that no known server covers.
	maxSearch = 4
	// maxServers is as many as a server is believed to tell of, and as many as
	// are looked for.
	maxServers = 256
	// promise is how many failures in a row it takes until an address is no
	// longer expected to be that of a missing server: some 5 s by default.
	promise = 4
	// shortLife is how long a session must last for its end not to count as
	// a failure of its address; a server that accepts and drops at once must
	// not be dialed in a tight loop.
	shortLife = 5 * time.Second
	// redialSpread spreads the first redial after a loss.
	redialSpread = 250 * time.Millisecond
	// resolveEvery is how often names are looked up while nothing is missing.
	resolveEvery = 5 * time.Second
)

// target is an address to dial and what is known of it. It belongs to the set's
// loop.
type target struct {
	address
	pace
	next    time.Time // no attempt before
	dialing int       // attempts under way
	server  string    // the id last met here
	listed  bool      // the names still resolve to it
	failing bool      // the last attempt failed, and that was logged
}

// plan returns the targets to dial now, some perhaps more than once, and when to
// look again at the latest. The rules:
//
//   - an address that no connected server covers is dialed, one attempt at a time;
//   - while more servers are missing than the addresses that no server covers
//     can account for, covered ones are dialed as well, since a load balancer
//     may have the missing ones behind it;
//   - while none is missing, one address is probed now and then, which brings
//     news of the count and finds servers beyond it.
func (s *set) plan(now time.Time) (dial []*target, wake time.Time) {
	wake = now.Add(s.opts.SyncIntervalCap)
	var search []*target
	searching, promising := 0, 0
	for _, t := range s.targets {
		if !t.listed {
			continue
		}
		covered := s.covered(t)
		if covered {
			searching += t.dialing
		} else if t.fails < promise {
			promising++
		}
		switch {
		case !covered && t.dialing > 0:
		case now.Before(t.next):
			wake = earlier(wake, t.next)
		case !covered:
			dial = append(dial, t)
		default:
			search = append(search, t)
		}
	}
	missing := s.want() - s.active()
	if missing <= 0 {
		return append(dial, s.probe(now, search)...), earlier(wake, s.nextProbe)
	}
	if missing <= promising {
		return dial, wake
	}
	found, next := s.search(now, search, min(missing+1, maxSearch)-searching)
	return append(dial, found...), earlier(wake, next)
}

// search picks up to n of the covered targets, some perhaps more than once, and
// says when to look again. One that is searched in vain gets one attempt at a
// time.
func (s *set) search(now time.Time, covered []*target, n int) (dial []*target, wake time.Time) {
	wake = now.Add(s.opts.SyncIntervalCap)
	rand.Shuffle(len(covered), func(i, j int) { covered[i], covered[j] = covered[j], covered[i] })
	for len(covered) > 0 && len(dial) < n {
		t := covered[0]
		covered = covered[1:]
		if t.doubtful() && t.dialing > 0 {
			continue
		}
		ok, next := s.searches.take(now)
		if !ok {
			return dial, next
		}
		dial = append(dial, t)
		if !t.doubtful() {
			covered = append(covered, t)
		}
	}
	return dial, wake
}

// probe picks one of the covered targets when it is time to.
func (s *set) probe(now time.Time, covered []*target) []*target {
	if now.Before(s.nextProbe) {
		return nil
	}
	s.nextProbe = now.Add(jitter(s.probeEvery()))
	if len(covered) == 0 || s.active() >= maxServers {
		return nil
	}
	t := covered[rand.N(len(covered))]
	if t.dialing > 0 {
		return nil
	}
	return []*target{t}
}

// probeEvery is how often to look for more while none is missing. An old server
// tells of a new count only when it is dialed; at twice the cap (20 s by default)
// that is known soon enough to be right within 30 s. Servers on links tell by
// themselves, so there it is a matter of safety only.
func (s *set) probeEvery() time.Duration {
	if s.opts.SyncForever {
		return s.opts.SyncIntervalCap
	}
	for _, m := range s.members {
		if m.Protocol() != protocolLink {
			return 2 * s.opts.SyncIntervalCap
		}
	}
	return 6 * s.opts.SyncIntervalCap
}

// covered says that the server last met at t is connected.
func (s *set) covered(t *target) bool {
	for id, m := range s.members {
		if !m.leaving && (m.target == t || id == t.server) {
			return true
		}
	}
	return false
}

// active is the number of servers connected that mean to stay.
func (s *set) active() int {
	n := 0
	for _, m := range s.members {
		if !m.leaving {
			n++
		}
	}
	return n
}

// want is the number of servers to be connected to; at least 1.
func (s *set) want() int {
	heard := min(max(s.heard, 1), maxServers)
	if s.opts.Leases == nil {
		return heard
	}
	leases, known := s.opts.Leases.Count()
	switch {
	case !known:
		return heard
	case s.opts.CountSource == CountMax:
		return max(heard, leases)
	default:
		return max(leases, 1)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
