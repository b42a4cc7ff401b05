package uplink

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/adapters/internal/fakeserver"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

var noAgents = link.Serving{Told: true, Why: "no connection to any proxy agent"}

// twoLinks is a client with two links to the one address of two servers, both to
// the first. The second is what the address leads to from then on.
func twoLinks(t *testing.T, p *fakeserver.PKI, first, second *fakeserver.Server) *Server {
	first.ID, first.Count, second.ID, second.Count = "first", 2, "second", 2
	n := at("192.0.2.1", first.Start(t).Addr())
	s := client(t, p, n, func(o *Options) { o.ResumeWindow = time.Minute })
	run(t, s)
	eventually(t, "two links", func() bool { return s.Stats().Links == 2 })
	n.set("192.0.2.1", second.Start(t).Addr())
	return s
}

// to counts the links to each server.
func to(s *Server) map[string]int {
	n := map[string]int{}
	for _, l := range s.Links() {
		n[l.Peer.ID]++
	}
	return n
}

// Where both links are to a server without agents, a dial has one of them replaced
// by a link to a server that has some. What was on it goes on.
func TestAServerWithAgentsIsSought(t *testing.T) {
	p := fakeserver.NewPKI(t)
	target := echo(t)
	agent := newAgent(t)
	first, second := resuming(p, agent), resuming(p, agent)
	first.Agents = noAgents
	s := twoLinks(t, p, first, second)
	c, err := s.Dial(t.Context(), tunnel.NewFlow("tcp", target))
	must(t, err)
	defer c.Close()
	eventually(t, "a dial by the server with agents", func() bool {
		f := tunnel.NewFlow("tcp", target)
		c, err := s.Dial(t.Context(), f)
		must(t, err)
		_ = c.Close()
		return f.Hop.ID == "second"
	})
	eventually(t, "one of the old links to be left", func() bool {
		n := to(s)
		return n["first"] == 1 && n["second"] == 1
	})
	says(t, c, "after")
	if got := s.Stats(); got.Lost != 0 {
		t.Errorf("%+v", got)
	}
}

// A search in vain leaves no link behind, and the links that there were are up.
func TestAVainSearchChangesNothing(t *testing.T) {
	p := fakeserver.NewPKI(t)
	target := echo(t)
	first, second := fakeserver.New(p), fakeserver.New(p)
	first.Agents, second.Agents = noAgents, noAgents
	s := twoLinks(t, p, first, second)
	eventually(t, "two searches", func() bool {
		must(t, roundTrip(t, s, target))
		return second.Links.Load() >= 2
	})
	if n := to(s); n["first"] != 2 || n["second"] != 0 {
		t.Errorf("links to %v", n)
	}
}

// There is nothing to find where every server that there is has a link, or one of
// them says that agents serve, or says nothing.
func TestNoSearchWithoutNeed(t *testing.T) {
	for name, c := range map[string]struct {
		count         int
		first, second link.Serving
		want          bool
	}{
		"needed":            {3, noAgents, noAgents, true},
		"all linked":        {2, noAgents, noAgents, false},
		"one has agents":    {3, noAgents, link.Serving{Told: true}, false},
		"one says nothing":  {3, noAgents, link.Serving{}, false},
		"counts not at all": {0, noAgents, noAgents, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeserver.NewPKI(t)
			a, b := fakeserver.New(p), fakeserver.New(p)
			a.ID, a.Count, a.Agents = "a", c.count, c.first
			b.ID, b.Count, b.Agents = "b", c.count, c.second
			s := client(t, p, at("192.0.2.1", a.Start(t).Addr(), "192.0.2.2", b.Start(t).Addr()), nil)
			run(t, s)
			eventually(t, "a link to each", func() bool { n := to(s); return n["a"] > 0 && n["b"] > 0 })
			if got := s.pool.links().toReplace() != nil; got != c.want {
				t.Errorf("searches: %v", got)
			}
		})
	}
}

// However much is dialed, searches are few: some at once, then one in 7.5 to 15 s.
// A new loss is seen to at once.
func TestSearchesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k pace
		searches := func(during time.Duration) (n int) {
			for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if k.begin(time.Now()) {
					if k.begin(time.Now()) {
						t.Error("two at once")
					}
					k.end(time.Now())
					n++
				}
			}
			return n
		}
		if n := searches(10 * time.Second); n < 6 || n > 8 {
			t.Errorf("%d in the first 10 s", n)
		}
		if n := searches(10 * time.Minute); n < 35 || n > 85 {
			t.Errorf("%d in 10 min", n)
		}
		time.Sleep(2 * maxPause)
		if n := searches(3 * time.Second); n < 4 {
			t.Errorf("%d in the first 3 s of another loss", n)
		}
	})
}
