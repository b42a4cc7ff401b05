package peers

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"konnectivity/internal/testutil"
)

// What happens to a session decides its state, in whatever order it happens: the
// worst of it counts, and only agents and addresses come back.
func TestStates(t *testing.T) {
	type event struct {
		name string
		do   func(*Member[string, *conn])
	}
	var (
		agentless = event{"agentless", func(m *Member[string, *conn]) { m.Session.agents = false }}
		agents    = event{"agents", func(m *Member[string, *conn]) { m.Session.agents = true }}
		unlisted  = event{"unlisted", func(m *Member[string, *conn]) { m.unlisted = true }}
		listed    = event{"listed", func(m *Member[string, *conn]) { m.unlisted = false }}
		drains    = event{"drains", func(m *Member[string, *conn]) { m.Session.drains.Happen() }}
		replaced  = event{"replaced", func(m *Member[string, *conn]) { m.replaced = true }}
		ends      = event{"ends", func(m *Member[string, *conn]) { close(m.Session.done) }}
	)
	for _, c := range []struct {
		happens []event
		want    State
		stays   bool
	}{
		{nil, Up, true},
		{[]event{agentless}, Agentless, true},
		{[]event{agentless, agents}, Up, true},
		{[]event{unlisted}, Unlisted, false},
		{[]event{agentless, unlisted}, Unlisted, false},
		{[]event{agentless, unlisted, listed}, Agentless, true},
		{[]event{unlisted, listed}, Up, true},
		{[]event{drains}, Leaving, false},
		{[]event{agentless, drains}, Leaving, false},
		{[]event{drains, unlisted, listed, agents}, Leaving, false},
		{[]event{unlisted, drains}, Leaving, false},
		{[]event{agentless, replaced}, Replaced, false},
		{[]event{replaced, agents, drains}, Replaced, false},
		{[]event{ends}, Ended, false},
		{[]event{agentless, unlisted, replaced, drains, ends}, Ended, false},
	} {
		session := &conn{agents: true, done: make(chan struct{})}
		m := Member[string, *conn]{Session: session, serves: func(c *conn) bool { return c.agents }}
		said := ""
		for _, e := range c.happens {
			e.do(&m)
			said += e.name + " "
		}
		got := m.State()
		testutil.Holds(t, got == c.want && got.Stays() == c.stays, "%s: %d, stays: %v", said, got, got.Stays())
	}
}

// A session at an address that the names no longer have is Unlisted until they have
// it again, where addresses count; a reader of an earlier snapshot is not disturbed.
func TestUnlisted(t *testing.T) {
	for name, policy := range policies {
		w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}, "b": {"2"}}, up: map[string]bool{"1": true, "2": true}}
		running(t, w, policy, func(t *testing.T, s *Set[string, *conn]) {
			c := testutil.Must(w.connect(t.Context(), "a"))(t)
			s.Offer("a", c)
			synctest.Wait()
			before := s.Members()
			state := func(listed ...string) State {
				s.mail.post(func() { s.resolved(listed, nil) })
				synctest.Wait()
				all := s.Members()
				return all[0].State()
			}
			want := Up
			if policy.ByAddress {
				want = Unlisted
			}
			if got := state("b"); got != want || before[0].State() != Up {
				t.Errorf("%s: an address that is gone: %d, in the earlier snapshot %d", name, got, before[0].State())
			}
			testutil.Equal(t, state("a", "b"), Up, "%s: an address that is back", name)
		})
	}
}
