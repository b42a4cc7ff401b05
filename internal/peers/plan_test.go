package peers

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// all is a policy as an agent has it: every server once, by its id.
var all = Policy{
	Backoff: Backoff{Base: time.Second, Limit: 10 * time.Second, Growth: 1.5}, ShortLife: 5 * time.Second, Spread: 100 * time.Millisecond, Losses: 64,
	MaxSearch: 4, MaxPeers: 256,
	Want:       func(heard, _ int) int { return max(1, heard) },
	ProbeEvery: func(bool) time.Duration { return 20 * time.Second },
}

// each is a policy as a sidecar has it: every address once, and the only one
// twice where several servers are behind it.
var each = Policy{
	Backoff: Backoff{Base: 250 * time.Millisecond, Limit: 15 * time.Second, Growth: 2}, ShortLife: 10 * time.Second, Spread: 100 * time.Millisecond, Losses: 64,
	Wary: true, MaxSearch: 1, ByAddress: true,
	Want: func(heard, addresses int) int {
		if addresses == 1 && heard > 1 {
			return 2
		}
		return 1
	},
}

var policies = map[string]Policy{"all": all, "each": each}

// noon is when a table's story begins.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// next is whom a plan dials, sorted.
func next(p *Plan, now time.Time) string {
	dial, _ := p.Next(now)
	slices.Sort(dial)
	return strings.Join(dial, " ")
}

// meets has an attempt that Next asked for meet a server.
func meets(p *Plan, address, id string, count int, now time.Time) *Peer {
	p.Done(address)
	return p.Met(address, id, count, false, now)
}

// dialing is a plan that has these addresses dialed at noon.
func dialing(policy Policy, addresses ...string) *Plan {
	p := NewPlan(policy, noon)
	p.List(addresses, true)
	next(p, noon)
	return p
}

func TestPlanDials(t *testing.T) {
	type step struct {
		address, id string // met there; "" is nothing but a look
		count       int
		dials       string // by the next look, a second later
	}
	for name, c := range map[string]struct {
		policy Policy
		listed string
		first  string
		steps  []step
	}{
		"every address, one attempt at a time":  {all, "a b c", "a b c", []step{{dials: ""}, {"b", "1", 0, ""}, {"a", "2", 0, ""}, {"c", "3", 0, ""}}},
		"no address":                            {all, "", "", []step{{dials: ""}}},
		"one server is all":                     {all, "a", "a", []step{{"a", "1", 1, ""}}},
		"others behind the same address":        {all, "a", "a", []step{{"a", "1", 3, "a a a"}, {"a", "2", 3, ""}, {"a", "3", 3, ""}}},
		"never more than the policy's search":   {all, "a", "a", []step{{"a", "1", 100, "a a a a"}}},
		"addresses without a server come first": {all, "a b", "a b", []step{{"a", "1", 2, ""}, {"b", "2", 2, ""}}},
		"no server twice":                       {all, "a b", "a b", []step{{"a", "1", 1, ""}, {"b", "1", 1, ""}}},
		"a link to each address":                {each, "a b", "a b", []step{{"a", "1", 3, ""}, {"b", "2", 3, ""}}},
		"two to the only one of many servers":   {each, "a", "a", []step{{"a", "1", 3, "a"}, {"a", "2", 3, ""}}},
		"one to the only one of one":            {each, "a", "a", []step{{"a", "1", 1, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			now := noon
			p := NewPlan(c.policy, now)
			p.List(strings.Fields(c.listed), true)
			got := next(p, now)
			testutil.Requires(t, got == c.first, "at first dials %q, want %q", got, c.first)
			for i, s := range c.steps {
				if s.address != "" {
					meets(p, s.address, s.id, s.count, now)
				}
				now = now.Add(time.Second)
				got := next(p, now)
				testutil.Requires(t, got == s.dials, "step %d dials %q, want %q", i, got, s.dials)
			}
		})
	}
}

// A server that is connected already is one too many, unless its session leaves.
func TestDuplicates(t *testing.T) {
	p := dialing(all, "a")
	first := meets(p, "a", "1", 2, noon)
	testutil.Holds(t, first != nil && p.Met("a", "1", 2, false, noon) == nil, "a server is connected twice")
	p.Leaving(first, noon.Add(time.Minute))
	second := p.Met("a", "1", 2, false, noon.Add(time.Minute))
	testutil.Holds(t, second != nil && p.Active() == 1 && p.Connected() == 1,
		"the successor: %v, %d active, %d connected", second, p.Active(), p.Connected())
	testutil.Holds(t, p.Lost(first, noon.Add(time.Minute)) && p.Active() == 1,
		"the end of a session whose successor is there counts as a loss")
	testutil.Holds(t, !p.Lost(second, noon.Add(time.Hour)) && p.Active() == 0, "the loss of the successor does not count")
}

// While the only server is about to go, another is looked for at least every
// second, however often the address has failed before; and no longer.
func TestServerThatGoesIsNotKeptWaiting(t *testing.T) {
	p := dialing(each, "a")
	for range 8 {
		p.Failed("a", noon)
	}
	m := meets(p, "a", "1", 1, noon)
	dial := next(p, noon.Add(time.Hour))
	testutil.Requires(t, dial == "", "dials %q", dial)
	p.Leaving(m, noon.Add(time.Hour))
	now := noon.Add(time.Hour).Add(each.Base)
	for range 8 {
		dial := next(p, now)
		testutil.Requires(t, dial == "a", "dials %q while a server waits to go", dial)
		p.Done("a")
		p.Failed("a", now)
		now = now.Add(leavePause)
	}
	p.Lost(m, now)
	for now = now.Add(each.Spread); next(p, now) == "a"; now = now.Add(leavePause) {
		p.Done("a")
		if p.Failed("a", now); now.After(noon.Add(2 * time.Hour)) {
			t.Fatal("when nobody waits any more, it dials every second")
		}
	}
}

// While a server goes it refuses all attempts. Once it has gone, its successor is
// looked for as soon as that of one that was cut, however many have failed.
func TestSuccessorOfAServerThatHasGone(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			p, now := planOfOne(t, policy)
			m := p.Met("a", "1", 1, false, now)
			now = now.Add(policy.ShortLife)
			p.Leaving(m, now)
			for range 8 {
				now = now.Add(untilNext(t, p, now))
				p.Failed("a", now)
			}
			p.Lost(m, now)
			for i, most := range []time.Duration{policy.Spread, 2 * policy.Spread, 4 * policy.Spread} {
				pause := untilNext(t, p, now)
				most = min(most, policy.Base) + 5*time.Millisecond
				testutil.Holds(t, pause <= most, "pause %d is %v, want up to %v", i, pause, most)
				now = now.Add(pause)
				p.Failed("a", now)
			}
		})
	}
}

// One that says at each connect that it is about to go, and hangs up, is a failure.
func TestServerThatAlwaysGoesIsNotStormed(t *testing.T) {
	for name, policy := range policies {
		p, now := planOfOne(t, policy)
		for range 20 {
			m := p.Met("a", "1", 1, false, now)
			p.Leaving(m, now)
			p.Lost(m, now)
			pause := untilNext(t, p, now)
			testutil.Requires(t, pause >= policy.Base/2, "%s: dialed after %v", name, pause)
			now = now.Add(pause)
		}
	}
}

// An address that the names have no more is not dialed, and where a look-up
// failed none is gone.
func TestAddressesComeAndGo(t *testing.T) {
	p := NewPlan(all, noon)
	p.List([]string{"a", "b"}, true)
	got := next(p, noon)
	testutil.Requires(t, got == "a b", "dials %q", got)
	for _, address := range []string{"a", "b"} {
		p.Done(address)
		p.Failed(address, noon)
	}
	p.List([]string{"c"}, false)
	testutil.Equal(t, next(p, noon.Add(time.Minute)), "a b c", "after a failed look-up, it dials")
	for _, address := range []string{"a", "b", "c"} {
		p.Done(address)
	}
	p.List([]string{"b"}, true)
	testutil.Equal(t, next(p, noon.Add(2*time.Minute)), "b", "with one left, it dials")
}

// A session outlives its address in the names. When the address comes back, the session
// covers it again: it is dialed when the session ends.
func TestAddressComesBack(t *testing.T) {
	for name, policy := range policies {
		p := dialing(policy, "a", "b")
		m := meets(p, "a", "1", 2, noon)
		meets(p, "b", "2", 2, noon)
		now := noon
		for range 3 {
			now = now.Add(2 * time.Second) // before a probe is due
			p.List([]string{"b"}, true)
			p.List([]string{"a", "b"}, true)
			testutil.Equal(t, next(p, now), "", "%s: where it has a session, it dials", name)
		}
		p.Lost(m, now)
		testutil.Equal(t, next(p, now.Add(time.Second)), "a", "%s: after the loss, it dials", name)
	}
}

// One server that knows of itself only does not have the others forgotten.
func TestModestServer(t *testing.T) {
	p := dialing(each, "a")
	first := meets(p, "a", "1", 3, noon)
	modest := p.Met("a", "2", 1, false, noon)
	testutil.Equal(t, p.Want(), 2, "servers it wants of several behind one address")
	p.Lost(modest, noon.Add(time.Minute))
	testutil.Equal(t, next(p, noon.Add(2*time.Minute)), "a", "when the modest one is lost, it dials")
	p.Leaving(first, noon.Add(2*time.Minute))
	testutil.Equal(t, p.Want(), 1, "servers it wants when nobody tells of several")
}

// A session to an address that is gone is not the second of the only one left.
func TestSecondIsAtTheSameAddress(t *testing.T) {
	p := dialing(each, "a", "b")
	meets(p, "a", "1", 2, noon)
	meets(p, "b", "2", 2, noon)
	p.List([]string{"b"}, true)
	testutil.Equal(t, next(p, noon.Add(time.Second)), "b", "dials")
	p.List([]string{"c"}, true)
	testutil.Equal(t, next(p, noon.Add(2*time.Second)), "c", "a new address: it dials")
}

// untilNext is how long the only address of a plan is left alone from now on.
func untilNext(t *testing.T, p *Plan, now time.Time) time.Duration {
	t.Helper()
	for d := time.Duration(0); d < time.Hour; d += 5 * time.Millisecond {
		if dial, _ := p.Next(now.Add(d)); len(dial) > 0 {
			p.Done(dial[0])
			return d
		}
	}
	t.Fatal("never dialed again")
	return 0
}

// planOfOne is a plan with one address, at the time when it has it dialed first.
func planOfOne(t *testing.T, policy Policy) (*Plan, time.Time) {
	t.Helper()
	p := NewPlan(policy, noon)
	p.List([]string{"a"}, true)
	return p, noon.Add(untilNext(t, p, noon))
}

func TestPauses(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			p, now := planOfOne(t, policy)
			for i := range 20 {
				first, needless := p.Failed("a", now)
				testutil.Requires(t, first == (i == 0) && !needless, "failure %d: first %v, needless %v", i, first, needless)
				most := grow(policy.Base, policy.Growth, i, policy.Limit)
				pause := untilNext(t, p, now)
				testutil.Requires(t, pause >= most/2 && pause <= most+5*time.Millisecond,
					"pause %d is %v, want up to %v", i, pause, most)
				now = now.Add(pause)
			}
			m := p.Met("a", "1", 1, false, now)
			p.Lost(m, now)
			if short := untilNext(t, p, now); policy.Wary && short < policy.Limit/2 {
				t.Errorf("a server that accepts and hangs up is dialed after %v", short)
			}
			m = p.Met("a", "1", 1, false, now)
			now = now.Add(policy.ShortLife)
			p.Lost(m, now)
			testutil.AtMost(t, untilNext(t, p, now), policy.Spread, "the pause behind one that lasted")
		})
	}
}

// lives has sessions with one address last for life, one after the other, and
// returns the pauses behind them.
func lives(t *testing.T, policy Policy, life time.Duration, n int) (pauses []time.Duration) {
	p, now := planOfOne(t, policy)
	for range n {
		m := p.Met("a", "1", 1, false, now)
		now = now.Add(life)
		p.Lost(m, now)
		pause := untilNext(t, p, now)
		pauses = append(pauses, pause)
		now = now.Add(pause)
	}
	return pauses
}

// A link that is cut time and again is redialed soon each time, for a while: what
// it carries stands still until then.
func TestCutSessionsAreRedialedSoon(t *testing.T) {
	for name, policy := range policies {
		for _, life := range []time.Duration{50 * time.Millisecond, 600 * time.Millisecond} {
			for i, pause := range lives(t, policy, life, policy.Losses) {
				testutil.AtMost(t, pause, policy.Spread+5*time.Millisecond,
					"%s: the pause behind cut %d after %v", name, i, life)
			}
		}
	}
}

// A link that is cut several times a second is seldom down for longer than its first
// redial is put off.
func TestLinksThatAreCutAreSeldomDown(t *testing.T) {
	for name, policy := range policies {
		var down []time.Duration
		for range 10 {
			down = append(down, cuts(t, policy, 50)...)
		}
		slices.Sort(down)
		if p50, p95 := down[len(down)/2], down[len(down)*95/100]; p50 > 2*policy.Spread || p95 > 5*policy.Spread {
			t.Errorf("%s: a link that was cut is down for %v, one in 20 for %v", name, p50, p95)
		}
	}
}

// cuts has n sessions with one address cut, each within 0.6 s of the one before or
// soon after it was made, and returns for how long there was none behind each.
func cuts(t *testing.T, policy Policy, n int) (down []time.Duration) {
	p, now := planOfOne(t, policy)
	for at := now; len(down) < n; {
		m := p.Met("a", "1", 1, false, now)
		at = at.Add(rand.N(600 * time.Millisecond))
		if soonest := now.Add(50 * time.Millisecond); at.Before(soonest) {
			at = soonest
		}
		p.Lost(m, at)
		pause := untilNext(t, p, at)
		down = append(down, pause)
		now = at.Add(pause)
	}
	return down
}

// A server that drops all whom it has accepted for a moment is not dialed without
// a pause for long.
func TestServerThatDropsAllIsNotStormed(t *testing.T) {
	for name, policy := range policies {
		sum := time.Duration(0)
		for _, pause := range lives(t, policy, 600*time.Millisecond, 3*policy.Losses)[2*policy.Losses:] {
			sum += pause
		}
		testutil.AtLeast(t, sum/time.Duration(policy.Losses), policy.Base/3, "%s: the mean pause", name)
	}
}

// One that drops them at once is so no longer than for some seconds.
func TestServerThatHangsUpIsNotStormed(t *testing.T) {
	for name, policy := range policies {
		pauses := lives(t, policy, 0, 12)
		sum := time.Duration(0)
		for _, pause := range pauses {
			sum += pause
		}
		if last := pauses[len(pauses)-1]; last < policy.Limit/2 || sum < 3*policy.Limit/2 {
			t.Errorf("%s: 12 attempts within %v, the last pause is %v", name, sum, last)
		}
	}
}

// An address whose server was asked to go is not one that failed, for who likes
// it dialed soon, whatever pause it has earned by short-lived sessions.
func TestDrainingAddress(t *testing.T) {
	for name, c := range map[string]struct {
		policy   Policy
		lived    time.Duration
		min, max time.Duration
	}{
		"all, at once":     {all, 0, all.Base / 2, all.Base},
		"all, later":       {all, time.Minute, 0, all.Spread},
		"each, at once":    {each, 0, each.Base, each.Base},
		"each, soon":       {each, each.Base / 2, each.Base / 2, each.Base / 2},
		"each, much later": {each, time.Minute, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPlan(c.policy, noon)
			p.List([]string{"a"}, true)
			now := noon
			m := p.Met("a", "1", 1, false, now)
			now = now.Add(c.lived)
			p.Leaving(m, now)
			testutil.Between(t, untilNext(t, p, now), c.min, c.max+5*time.Millisecond, "the pause")
		})
	}
}

// Next says in time when to look again: nothing becomes due before.
func TestWake(t *testing.T) {
	for name, policy := range policies {
		p := dialing(policy, "a", "b")
		p.Done("a")
		p.Failed("a", noon)
		_, wake := p.Next(noon)
		testutil.Equal(t, next(p, wake.Add(-time.Nanosecond)), "", "%s: due before %v", name, wake)
		testutil.Equal(t, next(p, wake), "a", "%s: due at %v", name, wake)
	}
}

func TestComplete(t *testing.T) {
	p := NewPlan(all, noon)
	testutil.Holds(t, !p.Complete(), "complete without an address")
	p.List([]string{"a", "b"}, true)
	next(p, noon)
	meets(p, "a", "1", 1, noon)
	testutil.Holds(t, !p.Complete(), "complete with an address without a server")
	m := meets(p, "b", "2", 2, noon)
	testutil.Holds(t, p.Complete(), "not complete: wants %d, has %d", p.Want(), p.Active())
	p.Heard(m, 3)
	testutil.Holds(t, !p.Complete(), "complete with a server missing")
	p.Heard(m, 2)
	p.Leaving(m, noon)
	testutil.Holds(t, !p.Complete(), "complete with one that leaves")
}

// A server that counts itself alone does not end the search: as it is lost again, the others
// still tell of it.
func TestServerThatCountsItselfAlone(t *testing.T) {
	p := NewPlan(all, noon)
	p.List([]string{"balancer"}, true)
	next(p, noon)
	meets(p, "balancer", "1", 3, noon)
	meets(p, "balancer", "2", 3, noon)
	m := meets(p, "balancer", "3", 1, noon)
	testutil.Holds(t, p.Complete(), "not complete: wants %d, has %d", p.Want(), p.Active())
	p.Lost(m, noon.Add(time.Minute))
	testutil.Equal(t, p.Want(), 3, "servers wanted")
	testutil.Holds(t, !p.Complete(), "complete with a server missing")
}

// What has just cut a session may cut the attempts behind it, too: they are made again
// soon, a few times, and then as after any failure.
func TestAttemptsBehindACut(t *testing.T) {
	p, now := planOfOne(t, all)
	m := p.Met("a", "1", 1, false, now)
	lost := now.Add(time.Minute)
	p.Lost(m, lost)
	now = lost.Add(untilNext(t, p, lost))
	soon := 0
	for now.Sub(lost) < all.Base {
		p.Failed("a", now)
		if soon++; soon == 1 && untilNext(t, p, now) > 2*all.Spread {
			t.Error("the first attempt that fails is not made again soon")
		}
		now = now.Add(untilNext(t, p, now))
	}
	testutil.Between(t, soon, 2, 6, "attempts within %v", all.Base)
	for i := range 3 {
		p.Failed("a", now)
		pause, most := untilNext(t, p, now), grow(all.Base, all.Growth, i, all.Limit)
		testutil.Between(t, pause, most/2, most+5*time.Millisecond, "pause %d behind these", i)
		now = now.Add(pause)
	}
}

// Links that come and go, each too short for a probe to fall due, do not put probes
// off for ever; and no probe is made as soon as a server is back.
func TestProbesBesideLinksThatComeAndGo(t *testing.T) {
	p, now := planOfOne(t, all)
	probes, atOnce := 0, 0
	for range 300 {
		m := p.Met("a", "1", 1, false, now)
		for second := range 6 {
			if next(p, now) != "" {
				probes++
				if second == 0 {
					atOnce++
				}
				p.Done("a")
				p.Met("a", "1", 1, false, now)
			}
			now = now.Add(time.Second)
		}
		p.Lost(m, now)
		now = now.Add(25 * time.Second)
	}
	testutil.Holds(t, probes >= 10 && atOnce == 0, "%d probes, %d of them as the server came back", probes, atOnce)
}
