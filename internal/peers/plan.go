package peers

import (
	"math/rand/v2"
	"slices"
	"time"
)

// promise is how many failures in a row it takes until an address is no longer
// expected to be that of a missing server: some 5 s for an agent by default.
const promise = 4

// Policy is how a Plan goes about it.
type Policy struct {
	// Backoff is for each address. Its Limit is also the longest that a Plan goes
	// without a look.
	Backoff

	// ShortLife is how long a session must last for its end not to count as a
	// failure of its address; a server that accepts and drops at once must
	// not be dialed in a tight loop.
	ShortLife time.Duration
	// Spread spreads the first redial after a loss.
	Spread time.Duration
	// Losses is how many short sessions at one address count as ones that were
	// cut. Those are redialed soon, with pauses that grow only while they end
	// at once. Every lossEvery allows one more. 0: none.
	Losses int
	// Wary keeps the failures of an address in mind when a session is made, until
	// one has lasted. One that ends at once is a failure, too.
	Wary bool

	// MaxSearch bounds the attempts under way for servers that are missing,
	// beyond one for each address that no known server covers. 0: there are none.
	MaxSearch int
	// MaxPeers is how many servers are connected at most to look for more.
	MaxPeers int
	// Most is to how many servers to be connected at most, where there are more; 0: to
	// all. Client is whose choice it is.
	Most   int
	Client string
	// ByAddress counts only sessions whose address is there now, and only what
	// their servers tell. Otherwise a server counts wherever it was met, and
	// the last word of any server counts, unless one that is connected and tells
	// of changes knows of more.
	//
	// It also redials an address soon whose server is about to go, since
	// another may be there already or is about to be, and repeats that soon
	// while there is no other, since the server that goes waits for it.
	ByAddress bool
	// Want is the number of servers to be connected to, at least 1: of the count
	// that servers told (0: none did) and the number of addresses.
	Want func(heard, addresses int) int
	// ProbeEvery is how often to look for more while none is missing; silent says
	// that some server does not tell by itself when the count changes. nil:
	// never.
	ProbeEvery func(silent bool) time.Duration
}

// Plan says which addresses to connect to and when. It does no I/O, has no lock and
// reads no clock: its owner does all that, and reports each outcome.
type Plan struct {
	policy    Policy
	places    []*place         // with Policy.Most, in the order of preference
	peers     map[string]*Peer // by id; leaving ones until a successor comes
	told      int              // the count that a server told last; 0: none
	wanted    int              // Want as of the last look
	nextProbe time.Time
	missed    bool // the one before nextProbe fell due while a server was missing
	searches  allowance
}

// place is the record of one address.
type place struct {
	address string
	pace
	next    time.Time // no attempt before
	tried   time.Time // the last outcome
	dialing int       // attempts under way
	met     string    // the id last met here
	listed  bool      // the names still resolve to it
	chosen  bool      // it is one of those to be connected to, as of the last elect
	weight  uint64    // with Policy.Most
	failing bool      // the last attempt failed
}

// Peer is a server that is connected. It belongs to its Plan.
type Peer struct {
	id      string
	at      *place
	since   time.Time
	count   int  // as it told last; 0: nothing
	leaving bool // it said that it is about to go
	silent  bool // it does not tell by itself when the count changes
}

// NewPlan is a Plan without addresses.
func NewPlan(p Policy, now time.Time) *Plan {
	plan := &Plan{policy: p, peers: map[string]*Peer{}}
	plan.nextProbe = now.Add(Jitter(plan.probeEvery()))
	return plan
}

// List takes in the addresses that there are now. Those that are gone are not
// dialed any more, but a session to one of them stays. Where not all are known,
// those that are not among them are not gone.
func (p *Plan) List(addresses []string, all bool) {
	for _, t := range p.places {
		t.listed = t.listed && !all
	}
	for _, address := range addresses {
		p.place(address).listed = true
	}
	p.places = slices.DeleteFunc(p.places, func(t *place) bool { return !t.listed && t.dialing == 0 && !p.home(t) })
}

// any says that one of the servers connected is so.
func (p *Plan) any(is func(*Peer) bool) bool {
	for _, m := range p.peers {
		if is(m) {
			return true
		}
	}
	return false
}

// home says that a session is at t, so that t is to be known again when its
// address comes back.
func (p *Plan) home(t *place) bool { return p.any(func(m *Peer) bool { return m.at == t }) }

// place finds or makes the record of an address.
func (p *Plan) place(address string) *place {
	if t := p.find(address); t != nil {
		return t
	}
	t := &place{address: address, listed: true, pace: pace{Backoff: p.policy.Backoff}}
	t.hope(p.Want())
	p.insert(t)
	return t
}

// find is the record of an address, nil where there is none.
func (p *Plan) find(address string) *place {
	if i := slices.IndexFunc(p.places, func(t *place) bool { return t.address == address }); i >= 0 {
		return p.places[i]
	}
	return nil
}

// Next returns the addresses to dial now, some perhaps more than once, and when
// to look again at the latest. For each the outcome has to be told, by Done and
// then by Met or Failed. The rules:
//
//   - an address that no connected server covers is dialed, one attempt at a time;
//   - while more servers are missing than the addresses that no server covers
//     can account for, covered ones are dialed as well, since a load balancer
//     may have the missing ones behind it;
//   - while none is missing, one address is probed now and then, which brings
//     news of the count and finds servers beyond it.
//
// With Policy.Most, addresses that are not chosen are left alone.
func (p *Plan) Next(now time.Time) (dial []string, wake time.Time) {
	p.recount()
	p.elect()
	due, wake := p.due(now)
	for _, t := range due {
		t.dialing++
		dial = append(dial, t.address)
	}
	return dial, wake
}

func (p *Plan) due(now time.Time) (dial []*place, wake time.Time) {
	wake = now.Add(p.policy.Limit)
	var search []*place
	searching, promising := 0, 0
	for _, t := range p.places {
		if !t.chosen {
			continue
		}
		covered := p.covered(t)
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
	missing := p.Want() - p.Active()
	if missing <= 0 {
		probe, next := p.probe(now, search)
		return append(dial, probe...), earlier(wake, next)
	}
	if missing <= promising {
		return dial, wake
	}
	found, next := p.search(now, search, min(missing+1, p.policy.MaxSearch)-searching)
	return append(dial, found...), earlier(wake, next)
}

// search picks up to n of the covered places, some perhaps more than once, and
// says when to look again. One that is searched in vain gets one attempt at a
// time.
func (p *Plan) search(now time.Time, covered []*place, n int) (dial []*place, wake time.Time) {
	wake = now.Add(p.policy.Limit)
	rand.Shuffle(len(covered), func(i, j int) { covered[i], covered[j] = covered[j], covered[i] })
	for len(covered) > 0 && len(dial) < n {
		t := covered[0]
		covered = covered[1:]
		if t.doubtful() && t.dialing > 0 {
			continue
		}
		ok, next := p.searches.take(now, SearchBurst, searchEvery)
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

// probe picks one of the covered places when it is time to, and says when it is
// again.
func (p *Plan) probe(now time.Time, covered []*place) (dial []*place, next time.Time) {
	if p.policy.ProbeEvery == nil {
		return nil, now.Add(p.policy.Limit)
	}
	if now.Before(p.nextProbe) {
		return nil, p.nextProbe
	}
	p.nextProbe, p.missed = now.Add(Jitter(p.probeEvery())), false
	if len(covered) == 0 || p.Active() >= p.policy.MaxPeers || p.policy.Most > 0 && p.Active() >= p.policy.Most {
		return nil, p.nextProbe
	}
	if t := covered[rand.N(len(covered))]; t.dialing == 0 {
		return []*place{t}, p.nextProbe
	}
	return nil, p.nextProbe
}

// probeEvery asks the policy; 0 where there are no probes.
func (p *Plan) probeEvery() time.Duration {
	if p.policy.ProbeEvery == nil {
		return 0
	}
	return p.policy.ProbeEvery(p.any(func(m *Peer) bool { return m.silent }))
}

// covered says that a server of t is connected.
func (p *Plan) covered(t *place) bool { return p.any(t.has) }

// has says that m is a server of t: it is connected there, or was last met there, and means
// to stay. It may be one of several addresses.
func (t *place) has(m *Peer) bool { return !m.leaving && (m.at == t || m.id == t.met) }

// Active is the number of servers connected that mean to stay.
func (p *Plan) Active() int {
	n := 0
	for _, m := range p.peers {
		if p.counts(m) {
			n++
		}
	}
	return n
}

// counts says that m is one of the servers to be connected to.
func (p *Plan) counts(m *Peer) bool { return !m.leaving && (m.at.listed || !p.policy.ByAddress) }

// heard is how many servers there are, as servers tell; 0: none does. A server that has
// just started may not know of the others (k0s gives each a count of 1 first), and those
// that are silent may tell of ones that are gone.
func (p *Plan) heard() int {
	most := 0
	if !p.policy.ByAddress {
		most = p.told
	}
	for _, m := range p.peers {
		if p.counts(m) && (p.policy.ByAddress || !m.silent) {
			most = max(most, m.count)
		}
	}
	return most
}

// Connected is the number of servers connected, those that leave included.
func (p *Plan) Connected() int { return len(p.peers) }

// Want is the number of servers to be connected to; at least 1.
func (p *Plan) Want() int {
	want := p.policy.Want(p.heard(), p.listed())
	if p.policy.Most > 0 {
		want = min(want, p.policy.Most)
	}
	return want
}

// Needless says that a session that was just made at an address is one too many,
// where there is to be one for each: another attempt was there first.
func (p *Plan) Needless(address string) bool {
	t := p.find(address)
	return p.policy.ByAddress && t != nil && p.covered(t) && p.Active() >= p.Want()
}

// listed is the number of addresses that there are now.
func (p *Plan) listed() (n int) {
	for _, t := range p.places {
		if t.listed {
			n++
		}
	}
	return n
}

// Complete says that no server is missing, and no chosen address is without one: it may
// be that of a server that was replaced.
func (p *Plan) Complete() bool {
	p.elect()
	if p.Active() < p.Want() || p.listed() == 0 {
		return false
	}
	return !slices.ContainsFunc(p.places, func(t *place) bool { return t.chosen && !p.covered(t) })
}

// earlier is the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
