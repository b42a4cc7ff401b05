package uplink

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

var noAgents = link.Serving{Told: true, Why: "no connection to any proxy agent"}

// twoLinks is a client with two links to the one address of two servers, both to
// the first. The second is what the address leads to from then on.
func twoLinks(t *testing.T, first, second *fakeServer) *Server {
	first.ID, first.Count, second.ID, second.Count = "first", 2, "second", 2
	n := at("192.0.2.1", first.Start(t).Addr())
	s := client(t, n, func(o *Options) { o.ResumeWindow = time.Minute })
	runLinked(t, s, 2)
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
func TestSearchFindsAServerWithAgents(t *testing.T) {
	target := testutil.Echo(t)
	agent := newAgent(t)
	first, second := resuming(t, agent), resuming(t, agent)
	first.Agents = noAgents
	s := twoLinks(t, first, second)
	c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
	defer c.Close()
	testutil.Eventually(t, "a dial by the server with agents", func() bool {
		f := tunnel.NewFlow("tcp", target)
		c := testutil.Must(s.Dial(t.Context(), f))(t)
		_ = c.Close()
		return f.Hop.ID == "second"
	})
	testutil.Eventually(t, "one of the old links to be left", func() bool {
		n := to(s)
		return n["first"] == 1 && n["second"] == 1
	})
	says(t, c, "after")
	testutil.Equal(t, s.Stats().Lost, 0, "lost links")
}

// A search in vain leaves no link behind, and the links that there were are up.
func TestSearchInVain(t *testing.T) {
	first, second := newFake(t), newFake(t)
	first.Agents, second.Agents = noAgents, noAgents
	s := twoLinks(t, first, second)
	testutil.Eventually(t, "two searches", func() bool {
		testutil.NoError(t, roundTrip(t, s))
		return second.Links.Load() >= 2
	})
	testutil.Eventually(t, "two links to the first alone", func() bool { n := to(s); return n["first"] == 2 && n["second"] == 0 })
}
