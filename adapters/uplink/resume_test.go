package uplink

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A server that goes is left at once, also while a connection goes on for ever:
// it moves to another link, if need be to one that is made for it.
func TestConnectionsMoveOffAServerThatGoes(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	agent := newAgent(t)
	old := resuming(p, agent).Start(t)
	n := at("192.0.2.1", old.Addr())
	s := client(t, p, n, func(o *Options) { o.ResumeWindow = time.Minute })
	runLinked(t, s, 1)
	c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
	defer c.Close()
	says(t, c, "before")

	next := resuming(p, agent).Start(t)
	n.set("192.0.2.1", next.Addr())
	old.Drain()
	says(t, c, "meanwhile")
	eventuallyOnlyOn(t, s, next)
	says(t, c, "after")
	testutil.AtLeast(t, next.Links.Load(), 1, "links to the next server")
	testutil.AtLeast(t, s.Ends().Stats().Resumes, 1, "resumptions")
}

// linkedToTwo has links to two servers of one agent, a, which is prepared, and b.
func linkedToTwo(t *testing.T, prepare func(a *fakeServer)) *Server {
	t.Helper()
	p := newPKI(t)
	agent := newAgent(t)
	a, b := resuming(p, agent), resuming(p, agent)
	a.ID, b.ID = "a", "b"
	prepare(a)
	s := client(t, p, at("192.0.2.1", a.Start(t).Addr(), "192.0.2.2", b.Start(t).Addr()), func(o *Options) { o.ResumeWindow = time.Minute })
	runLinked(t, s, 2)
	return s
}

// A connection is asked for at the server of Resume.First, even if another link carries
// less; a server without a link is not waited for.
func TestResumeAsksTheGivenServerFirst(t *testing.T) {
	s := linkedToTwo(t, func(*fakeServer) {})
	for _, id := range []string{"a", "b", "a", "b", "c", ""} {
		f := tunnel.NewFlow("tcp", "dest:1")
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, First: id}
		testutil.Equal(t, tunnel.FailureOf(testutil.Err(s.Dial(t.Context(), f))), tunnel.FailGone, "the failure")
		if id != "c" && id != "" && f.Hop.ID != id {
			t.Errorf("asked %s, want %s", f.Hop.ID, id)
		}
	}
}

// A server that is to be asked first, and says that it has lost its agents, is asked
// last.
func TestResumeAsksServersWithAgentsFirst(t *testing.T) {
	s := linkedToTwo(t, func(a *fakeServer) { a.Agents = noAgents })
	f := tunnel.NewFlow("tcp", "dest:1")
	f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, First: "a"}
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(s.Dial(t.Context(), f))), tunnel.FailGone, "the failure")
	testutil.Equal(t, f.Hop.ID, "b", "who was asked")
}
