package uplink

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
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
