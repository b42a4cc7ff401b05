package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// member of a test: its server, how many that tells of, and what the session is like.
type searched struct {
	server   string
	count    int
	agents   bool
	streams  int
	replaced bool
	drains   bool
}

// A search is for another server than those without agents that all sessions are to,
// if servers tell of more than are connected.
func TestSearchReplacesOneOfThoseWithoutAgents(t *testing.T) {
	const nobody = ""
	a, b := searched{server: "a", count: 3}, searched{server: "b", count: 3, streams: 1}
	with := func(m searched, change func(*searched)) searched { change(&m); return m }
	replaced := with(a, func(m *searched) { m.replaced = true })
	for name, c := range map[string]struct {
		members []searched
		want    string // the server whose session is to be replaced
	}{
		"no session":                      {nil, nobody},
		"needed":                          {[]searched{a, b}, "a"},
		"the one with fewer streams":      {[]searched{with(a, func(m *searched) { m.streams = 2 }), b}, "b"},
		"all are connected":               {[]searched{with(a, func(m *searched) { m.count = 2 }), with(b, func(m *searched) { m.count = 2 })}, nobody},
		"one knows of more":               {[]searched{with(a, func(m *searched) { m.count = 2 }), b}, "a"},
		"two to one server":               {[]searched{with(a, func(m *searched) { m.count = 2 }), with(a, func(m *searched) { m.count = 2 })}, "a"},
		"one has agents":                  {[]searched{a, with(b, func(m *searched) { m.agents = true })}, nobody},
		"one with agents that goes":       {[]searched{a, with(b, func(m *searched) { m.agents, m.drains = true, true })}, "a"},
		"servers tell no count":           {[]searched{with(a, func(m *searched) { m.count = 0 }), with(b, func(m *searched) { m.count = 0 })}, nobody},
		"the others are on their way":     {[]searched{replaced, with(b, func(m *searched) { m.drains = true })}, nobody},
		"some were replaced":              {[]searched{replaced, replaced, replaced, b}, "b"},
		"as many were replaced as may be": {[]searched{replaced, replaced, replaced, replaced, b}, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config[string, *conn]{Server: func(c *conn) string { return c.server }})
			for _, m := range c.members {
				session := &conn{server: m.server, w: &world{}, count: m.count, agents: m.agents, streams: m.streams, done: make(chan struct{})}
				if m.drains {
					session.drains.Happen()
				}
				s.members = append(s.members, &member[string, *conn]{Member: Member[string, *conn]{
					Session: session, serves: func(c *conn) bool { return c.agents }, replaced: m.replaced,
				}})
			}
			got := nobody
			if m := s.toReplace(); m != nil {
				got = m.Session.server
			}
			testutil.Equal(t, got, c.want, "what it replaces")
		})
	}
}

// What a search finds takes the place of the old session if it has agents, and is
// closed if not; so it is if the old session has gone meanwhile.
func TestSearch(t *testing.T) {
	for name, c := range map[string]struct {
		agents, ends, fails bool
		states              []State // of the sessions afterwards
		retired             int
	}{
		"a server with agents":         {agents: true, states: []State{Replaced, Up}, retired: 1},
		"another without":              {states: []State{Agentless}},
		"none":                         {fails: true, states: []State{Agentless}},
		"one, and the old one is gone": {agents: true, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1", "2"}}, up: map[string]bool{"1": true, "2": true}, links: true}
			synctest.Test(t, func(t *testing.T) {
				s := w.set(each)
				s.cfg.Server, s.cfg.Serves = func(c *conn) string { return c.server }, func(c *conn) bool { return c.agents }
				searches, retired := 0, 0
				var found *conn
				s.cfg.Replace = func(ctx context.Context, to string) (*conn, error) {
					searches++
					if c.fails {
						return nil, errors.New("refused")
					}
					var err error
					found, err = w.connect(ctx, to)
					found.agents = c.agents
					return found, err
				}
				s.cfg.Retire = func(context.Context, *conn) { retired++ }
				stop := testutil.Start(t, s.Run)
				old := testutil.Must(w.connect(t.Context(), "a"))(t)
				old.count = 3
				s.Offer("a", old)
				synctest.Wait()
				s.Search()
				s.Search()
				if c.ends {
					synctest.Wait()
					old.end()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				all := s.Members()
				var states []State
				for i := range all {
					states = append(states, all[i].State())
				}
				testutil.Holds(t, len(states) == len(c.states) && searches == 1 && retired == c.retired,
					"states %v after %d searches, %d retired", states, searches, retired)
				for i := range min(len(states), len(c.states)) {
					testutil.Equal(t, states[i], c.states[i], "one of the states %v", states)
				}
				if kept := len(c.states) == 2; found != nil && tunnel.Closed(found.Done()) == kept {
					t.Errorf("the session that was found is closed: %v", kept)
				}
				stop()
				s.Close()
				testutil.Equal(t, len(w.conns), 0, "sessions are left open")
			})
		})
	}
}

// However much is dialed, searches are few: some at once, then one in 7.5 to 15 s.
// The search for another loss is made at once.
func TestSearchesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := searchPace{initial: Backoff{Base: 250 * time.Millisecond, Limit: 15 * time.Second, Growth: 2}}
		searches := func(during time.Duration) (n int) {
			for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if p.begin(time.Now()) {
					testutil.Holds(t, !p.begin(time.Now()), "two at once")
					p.end(time.Now())
					n++
				}
			}
			return n
		}
		testutil.Between(t, searches(10*time.Second), 6, 8, "searches in the first 10 s")
		testutil.Between(t, searches(10*time.Minute), 35, 85, "searches in 10 min")
		time.Sleep(30 * time.Second)
		testutil.AtLeast(t, searches(3*time.Second), 4, "searches in the first 3 s of another loss")
	})
}
