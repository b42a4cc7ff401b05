package uplink

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// linkedToTwo has links to two servers of one agent, a, which is prepared, and b.
func linkedToTwo(t *testing.T, prepare func(a *fakeServer)) *Server {
	t.Helper()
	agent := newAgent(t)
	a, b := resuming(t, agent), resuming(t, agent)
	a.ID, b.ID = "a", "b"
	prepare(a)
	s := client(t, at("192.0.2.1", a.Start(t).Addr(), "192.0.2.2", b.Start(t).Addr()), func(o *Options) { o.ResumeWindow = time.Minute })
	runLinked(t, s, 2)
	return s
}

// wantUnknown asks for a connection that no agent knows. While links are new, which on a busy
// machine may be over, the one that knows may be about to come.
func wantUnknown(t *testing.T, s *Server, f *tunnel.Flow) {
	t.Helper()
	failure := tunnel.FailureOf(testutil.Err(s.Dial(t.Context(), f)))
	testutil.Holds(t, failure == tunnel.FailAgentLost || failure == tunnel.FailGone, "the failure is %v", failure)
}

// A connection is asked for at the server of Resume.First, even if another link carries
// less, and then at the other one, since the agent does not know it; a server without a link
// is not waited for.
func TestResumeAsksTheGivenServerFirst(t *testing.T) {
	s := linkedToTwo(t, func(*fakeServer) {})
	for _, id := range []string{"a", "b", "a", "b", "c", ""} {
		f := tunnel.NewFlow("tcp", "dest:1")
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, First: id}
		wantUnknown(t, s, f)
		testutil.Holds(t, id == "c" || id == "" || f.Hop.ID != id, "asked %s last, want it first", id)
	}
}

// A server that is to be asked first, and says that it has lost its agents, is asked
// last.
func TestResumeAsksServersWithAgentsFirst(t *testing.T) {
	s := linkedToTwo(t, func(a *fakeServer) { a.Agents = noAgents })
	f := tunnel.NewFlow("tcp", "dest:1")
	f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, First: "a"}
	wantUnknown(t, s, f)
	testutil.Equal(t, f.Hop.ID, "a", "who was asked last")
}

// Two agents have one id, and each server leads to one of them. If the agent that is asked
// first does not know a connection, the other one is asked.
func TestResumeAsksEveryServerForTheAgentThatKnows(t *testing.T) {
	s := linkedToTwo(t, func(a *fakeServer) { a.Ends = newAgent(t) })
	far := testutil.Echo(t)
	open := func(first string, epoch uint32) (*tunnel.Flow, error) {
		f := tunnel.NewFlow("tcp", far)
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: epoch, First: first}
		_, err := s.dial(t.Context(), f)
		return f, err
	}
	f := testutil.Must(open("", 0))(t)
	knows := f.Hop.ID
	for epoch, first := range []string{"a", "b"} {
		f := testutil.Must(open(first, uint32(epoch+1)))(t)
		testutil.Equal(t, f.Hop.ID, knows, "the server by which it was resumed")
	}
}

// A server that cannot say whether its agent knows a connection, as it has none, does not keep
// one that the agent of the other server does not know; but while links are new, the agent that
// knows may be about to come.
func TestResumeEndsWhereOneAgentDoesNotKnow(t *testing.T) {
	t.Parallel() // it waits
	s := linkedToTwo(t, func(a *fakeServer) {
		a.Ends = newAgent(t)
		a.Ends.SetHandingOver(true) // it answers as for an agent that is not connected
	})
	for _, first := range []string{"a", "b"} {
		f := tunnel.NewFlow("tcp", "dest:1")
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, First: first}
		failure := func() tunnel.Failure { return tunnel.FailureOf(testutil.Err(s.Dial(t.Context(), f))) }
		wantUnknown(t, s, f)
		testutil.Eventually(t, "asked at "+first+" first, it is gone", func() bool { return failure() == tunnel.FailGone })
	}
}

// A connection whose server is killed outlives it also where the agent that knows it is at no
// other server: that another agent of its id does not know it, is not believed at once.
func TestConnectionsWaitForTheirAgent(t *testing.T) {
	t.Parallel() // it waits
	servers := map[string]*fakeServer{"a": resuming(t, newAgent(t)), "b": resuming(t, newAgent(t))}
	for id, server := range servers {
		server.ID = id
		server.Start(t)
	}
	s := client(t, at("192.0.2.1", servers["a"].Addr(), "192.0.2.2", servers["b"].Addr()), func(o *Options) { o.ResumeWindow = time.Minute })
	runLinked(t, s, 2)
	f := tunnel.NewFlow("tcp", testutil.Echo(t))
	c := testutil.Opened(s.Dial(t.Context(), f))(t)
	says(t, c, "before")
	knows := servers[f.Hop.ID]
	knows.Stop()
	time.Sleep(300 * time.Millisecond) // the other one has been asked by then
	knows.StartAt(t, knows.Addr())
	says(t, c, "behind it")
}

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
	c := testutil.Opened(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
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
