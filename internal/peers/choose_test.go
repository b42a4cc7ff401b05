package peers

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// some is a policy with a choice of so many.
func some(p Policy, most int, client string) Policy {
	p.Most, p.Client = most, client
	return p
}

// choice is what a client prefers among n servers.
func choice(client, most, n int) []string {
	p := NewPlan(some(all, most, fmt.Sprint("client-", client)), noon)
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d:8091", i))
	}
	p.List(addresses, true)
	return strings.Fields(next(p, noon))
}

// Each server has the same part of 5,000 clients, but for 15 %, and one that comes or goes
// moves one choice of one client in n, within the same bounds, and none of another.
func TestChoiceIsEvenAndLasts(t *testing.T) {
	const clients = 5000
	for _, c := range []struct{ most, servers int }{{1, 3}, {2, 3}, {2, 5}, {3, 20}} {
		load, moved := map[string]int{}, 0
		for client := range clients {
			before, after := choice(client, c.most, c.servers-1), choice(client, c.most, c.servers)
			testutil.Requires(t, len(after) == c.most, "chose %q, want %d", after, c.most)
			for _, a := range after {
				load[a]++
			}
			for _, a := range before {
				if !slices.Contains(after, a) {
					moved++
				}
			}
		}
		part := float64(clients*c.most) / float64(c.servers)
		for a, n := range load {
			testutil.Holds(t, float64(n) >= 0.85*part && float64(n) <= 1.15*part,
				"%d of %d: %s has %d clients, want about %.0f", c.most, c.servers, a, n, part)
		}
		testutil.Holds(t, len(load) == c.servers && float64(moved) <= 1.15*part,
			"%d of %d: %d servers are used; one more has moved %d links, want %.0f", c.most, c.servers, len(load), moved, part)
	}
}

// preferred is three addresses, as the client c prefers them.
func preferred() []string {
	addresses := []string{"a", "b", "c"}
	slices.SortFunc(addresses, func(a, b string) int { return cmp.Compare(weight("c", b), weight("c", a)) })
	return addresses
}

// planWith returns a plan that prefers two of those addresses, and tells it which servers
// were met, in order. For example, 2=4 is server 4 at address 2, the last.
func planWith(servers string) *Plan {
	p, addresses := NewPlan(some(all, 2, "c"), noon), preferred()
	p.List(addresses, true)
	for one := range strings.FieldsSeq(servers) {
		p.Met(addresses[one[0]-'0'], one[2:], 4, false, noon)
	}
	return p
}

// Of three servers, a client keeps to two. It is connected to another one before it loses
// one that is about to go, and leaves that for one it prefers only when this has lasted.
func TestAnotherTakesThePlace(t *testing.T) {
	p := NewPlan(some(all, 2, "c"), noon)
	addresses := preferred()
	first, second, third := addresses[0], addresses[1], addresses[2]
	now := noon
	dials := func(what string, want ...string) {
		t.Helper()
		slices.Sort(want)
		got := next(p, now)
		testutil.Requires(t, got == strings.Join(want, " "), "%s: dials %q, want %q", what, got, want)
	}
	p.List(addresses, true)
	dials("at first", first, second)
	old := meets(p, first, "1", 3, now)
	meets(p, second, "2", 3, now)
	dials("with both")
	now = now.Add(time.Minute)
	dials("later")
	p.Leaving(old, now)
	dials("as one is about to go", third)
	meets(p, third, "3", 3, now)
	testutil.Equal(t, p.Active(), 2, "servers")
	p.Lost(old, now)
	p.Done(first)
	now = now.Add(2 * time.Second)
	dials("once it has gone", first)
	p.Failed(first, now)
	m := p.Surplus(now.Add(time.Minute))
	testutil.Holds(t, m == nil, "leaves %v with nobody in its place", m)
	now = now.Add(time.Minute)
	dials("again", first)
	p.Done(first)
	meets(p, first, "1", 3, now)
	m = p.Surplus(now.Add(all.ShortLife / 2))
	testutil.Holds(t, m == nil, "leaves %v for one that may not last", m)
	m = p.Surplus(now.Add(all.ShortLife))
	testutil.Requires(t, m != nil && m.id == "3", "leaves %v, want 3", m)
	p.Replaced(m)
	m = p.Surplus(now.Add(time.Hour))
	testutil.Holds(t, m == nil && p.Active() == 2, "leaves %v, with %d servers", m, p.Active())
}

// Addresses of one server are not two servers.
func TestTwoAddressesOfOneServerAreOneChoice(t *testing.T) {
	p := NewPlan(some(all, 2, "c"), noon)
	p.List([]string{"a", "b", "c"}, true)
	for i, address := range strings.Fields(next(p, noon)) {
		peer := meets(p, address, "same", 2, noon)
		testutil.Requires(t, (peer != nil) == (i == 0), "a server is connected twice")
	}
	testutil.Equal(t, len(next(p, noon.Add(time.Second))), 1, "addresses it dials")
}

// A server that is connected at one address, and was met at another since, is the one of
// both. So the third server is left: here the second one behind the last address, or one
// of two that are behind the first.
func TestThirdServerIsLeftWhereOneHasTwoAddresses(t *testing.T) {
	for servers, leaves := range map[string]string{"0=1 2=3 2=4 1=3": "4", "2=3 0=2 1=1 0=3": "2 3"} {
		p := planWith(servers)
		m := p.Surplus(noon.Add(time.Minute))
		testutil.Requires(t, m != nil && strings.Contains(leaves, m.id), "%s: leaves %v, want %s", servers, m, leaves)
		p.Replaced(m)
		m = p.Surplus(noon.Add(time.Minute))
		testutil.Holds(t, m == nil && p.Active() == 2, "%s: leaves %v, with %d servers", servers, m, p.Active())
	}
}

// Where both servers are behind the first address, and one behind the second as well, they
// count for one each at every look: else the third is dialed, and left, again and again.
func TestTwoServersOfTwoAddressesAreEnough(t *testing.T) {
	for range 20 { // servers are looked at in any order
		p := planWith("0=2 0=3 1=3")
		dials := next(p, noon.Add(time.Second))
		testutil.Requires(t, dials == "", "dials %q", dials)
	}
}

// Whatever servers and names do, a set that is to have two servers has two soon after they
// have calmed down, or as many as can be reached, and no third that it could leave. Once all
// are there, it dials none.
func TestSimulationOfSome(t *testing.T) {
	shapes := map[string]map[string][]string{
		"own":      {"a": {"1"}, "b": {"2"}, "c": {"3"}, "d": {"4"}, "e": {"5"}},
		"balancer": {"a": {"1", "2", "3", "4"}},
		"both":     {"a": {"1", "2"}, "b": {"2", "3"}, "c": {"3", "4"}},
	}
	for policy, values := range policies {
		for shape, behind := range shapes {
			if policy == "each" && shape != "own" {
				continue // it has links to addresses, and not to servers
			}
			for seed := range uint64(10) {
				t.Run(fmt.Sprint(policy, " ", shape, " ", seed), func(t *testing.T) {
					w := &world{random: rand.New(rand.NewPCG(seed, 2)), behind: behind, up: map[string]bool{}, links: policy == "each", retires: true}
					for _, servers := range behind {
						for _, server := range servers {
							w.up[server] = true
						}
					}
					running(t, w, some(values, 2, fmt.Sprint(seed)), w.simulateSome)
				})
			}
		}
	}
}

func (w *world) simulateSome(t *testing.T, s *Set[string, *conn]) {
	s.Keep()
	for range 3 {
		for range 30 {
			time.Sleep(w.pause())
			w.happens()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		reached, listed := map[string]bool{}, w.listed()
		for _, address := range listed {
			for _, server := range w.behind[address] {
				if w.up[server] {
					reached[server] = true
				}
			}
		}
		w.mu.Unlock()
		got := map[string]bool{}
		for _, m := range s.Members() {
			if m.State().Stays() && slices.Contains(listed, m.Address) {
				got[m.Session.server] = true
			}
		}
		if want := min(2, len(reached)); len(got) < want && len(w.live(s)) < want || len(got) > 2 {
			t.Fatalf("connected to %v of %v at %v", got, reached, listed)
		}
	}
	w.allAreThere()
	time.Sleep(2 * time.Minute)
	before := w.dialed()
	time.Sleep(2 * time.Minute)
	n := w.dialed() - before
	testutil.Holds(t, n == 0 && len(w.live(s)) == 2, "connected to %v, after %d dials more", w.live(s), n)
}

// allAreThere has all servers and addresses come back.
func (w *world) allAreThere() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for server := range w.up {
		w.up[server] = true
	}
	clear(w.hidden)
}

func (w *world) dialed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

// ends ends a session that was replaced.
func ends(_ context.Context, c *conn) { c.end() }
