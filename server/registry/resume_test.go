package registry

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// doubting is a backend that is asked to show that it lives.
type doubting struct {
	*fake
	doubts atomic.Int32
}

func (d *doubting) Probe() { d.doubts.Add(1) }

// An agent that connects again, and stays, may have lost its link and be the only
// one to know: the older one has to show that it lives. Nobody else's has, nor if
// the newer one was only to see who is there.
func TestOlderLinkIsDoubted(t *testing.T) {
	for name, c := range map[string]struct {
		early func(newer *fake, leave func() bool) // before stayTime is over
		want  int
	}{
		"stays":  {func(*fake, func() bool) {}, 1},
		"leaves": {func(_ *fake, leave func() bool) { leave() }, 0},
		"ends":   {func(newer *fake, _ func() bool) { newer.end() }, 0},
		"drains": {func(newer *fake, _ func() bool) { newer.drain() }, 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			older, other := &doubting{fake: newFake("older")}, &doubting{fake: newFake("other")}
			defer s.Join(Agent{ID: "a"}, older).Leave()
			defer s.Join(Agent{ID: "a", Cert: "another"}, other).Leave()
			newer := newFake("newer")
			leave := s.Join(Agent{ID: "a"}, newer).Leave
			defer leave()
			time.Sleep(stayTime - time.Millisecond)
			testutil.Equal(t, older.doubts.Load(), 0, "doubts before the newer one has stayed")
			c.early(newer, leave)
			time.Sleep(10 * stayTime)
			synctest.Wait()
			if got, others := int(older.doubts.Load()), other.doubts.Load(); got != c.want || others != 0 {
				t.Errorf("the older link is doubted %d times, want %d, another agent's %d", got, c.want, others)
			}
		})
	}
}

// A request to resume waits a moment for an agent that is not there.
func TestResumeWaitsForTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		after, took time.Duration
		want        string
	}{
		"comes back": {returnTime / 2, returnTime / 2, "a"},
		"stays away": {2 * returnTime, returnTime, "agent_lost"},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			time.AfterFunc(c.after, func() { s.agent("a", "") })
			f := tunnel.NewFlow("tcp", "10.0.0.1:1")
			f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "a"}.route()}
			began := time.Now()
			got, took := s.outcome(f), time.Since(began)
			testutil.Holds(t, got == c.want && took == c.took, "via %s after %v", got, took)
			time.Sleep(2 * returnTime)
		})
	}
}

// Of agents that share an id and a certificate all are asked before a connection
// is taken for gone.
func TestResumeAsksAllWhoMayHaveTheConnection(t *testing.T) {
	gone := func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailGone} }
	for name, c := range map[string]struct {
		dials []func(context.Context) error
		want  string
	}{
		"the second knows": {[]func(context.Context) error{gone, nil}, "b"},
		"nobody knows":     {[]func(context.Context) error{gone, gone}, "gone"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, "default")
			for i, dial := range c.dials {
				f, leave := s.join(string(rune('a'+i)), "same", "")
				defer leave()
				f.dial = dial
			}
			f := tunnel.NewFlow("tcp", "10.0.0.1:1")
			f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "same"}.route()}
			testutil.Equal(t, s.outcome(f), c.want, "%s", name)
		})
	}
}

// An agent by gRPC is asked to resume nothing: it would make a new connection.
func TestResumeNeedsALink(t *testing.T) {
	for via, want := range map[Via]string{ViaGRPC: "agent_lost", ViaLink: "a"} {
		testutil.Bubble(t, string(via), func(t *testing.T) {
			s := newSetup(t, "default")
			a := Agent{ID: "a", Via: via}
			defer s.Join(a, newFake("a")).Leave()
			f := tunnel.NewFlow("tcp", "10.0.0.1:1")
			f.Resume = &tunnel.Resume{Epoch: 1, Route: a.route()}
			testutil.Equal(t, s.outcome(f), want, "a connection is resumed via")
		})
	}
}

// The connections of an agent that drained and was then cut off are given up: a process that was
// told to stop, and killed, does not come back. One that was cut off without draining may, as may
// one whose network fails.
func TestResumeGivesUpAnAgentThatDrained(t *testing.T) {
	drainedAndCut := func(f *fake) { f.drain(); f.end() }
	gone := func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailGone} }
	for name, c := range map[string]struct {
		happens []func(f *fake) // to agents of one route, one after the other
		then    string          // after BackTime
	}{
		"cut off":                      {[]func(*fake){(*fake).end}, "agent_lost"},
		"drained":                      {[]func(*fake){drainedAndCut}, "gone"},
		"drained, and fell silent":     {[]func(*fake){func(f *fake) { f.err = link.ErrDead; drainedAndCut(f) }}, "agent_lost"},
		"drained twice":                {[]func(*fake){drainedAndCut, drainedAndCut}, "gone"},
		"another was cut off before":   {[]func(*fake){(*fake).end, drainedAndCut}, "agent_lost"},
		"its successor was cut off":    {[]func(*fake){drainedAndCut, (*fake).end}, "agent_lost"},
		"its successor was thrown out": {[]func(*fake){drainedAndCut, func(f *fake) { f.err = link.ErrClosed; f.end() }}, "agent_lost"},
		"it is back":                   {[]func(*fake){drainedAndCut, func(*fake) {}}, "again"},
		"it is still about to leave":   {[]func(*fake){(*fake).drain}, "again"},
		"its successor is there":       {[]func(*fake){drainedAndCut, func(f *fake) { f.dial = gone }}, "gone"},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			for _, happens := range c.happens {
				f := newFake("again")
				defer s.Join(Agent{ID: "same"}, f).Leave()
				happens(f)
				synctest.Wait()
			}
			resume := func() string {
				f := tunnel.NewFlow("tcp", "10.0.0.1:1")
				f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "same"}.route()}
				return s.outcome(f)
			}
			testutil.Holds(t, resume() != "gone", "the connection is given up at once")
			time.Sleep(tunnel.BackTime)
			testutil.Equal(t, resume(), c.then, "after %v", tunnel.BackTime)
		})
	}
}

// That one agent does not know a connection is no answer where another one of its route may
// be about to come back.
func TestResumeWaitsForAnAgentBesideAnother(t *testing.T) {
	const asks, gone = "agent_lost", "gone"
	for name, c := range map[string]struct {
		happens    func(s *setup, first, second *fake)
		want, then string // right after that, and after BackTime
	}{
		"nothing":              {func(*setup, *fake, *fake) {}, gone, gone},
		"the first is cut off": {func(_ *setup, first, _ *fake) { first.end() }, asks, gone},
		"it drained before":    {func(_ *setup, first, _ *fake) { first.drain(); first.end() }, asks, gone},
		"both are cut off": {func(s *setup, first, second *fake) {
			first.end()
			synctest.Wait()
			second.end()
			synctest.Wait()
			joinIgnorant(s)
		}, asks, gone},
		"the first does not answer": {func(_ *setup, first, _ *fake) {
			first.dial = func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailAgentLost} }
		}, asks, asks},
		"the server has just started": {func(s *setup, _, _ *fake) {
			settled := make(chan struct{})
			time.AfterFunc(tunnel.BackTime, func() { close(settled) })
			s.settled = settled
		}, asks, gone},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			first, second := joinIgnorant(s), joinIgnorant(s)
			c.happens(s, first, second)
			synctest.Wait()
			for _, want := range []string{c.want, c.then} {
				f := tunnel.NewFlow("tcp", "10.0.0.1:1")
				f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "same"}.route()}
				testutil.Equal(t, s.outcome(f), want, "the answer")
				time.Sleep(tunnel.BackTime)
			}
		})
	}
}

// An agent that was alone is not waited for once the next one is there: its connections went
// with it. One that drained comes back beside the next one, while it has connections.
func TestResumeAfterAnAgentWasReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		drains bool
		want   string
	}{
		"cut off":                 {link.ErrDead, false, "gone"},
		"cut off as it drained":   {link.ErrDead, true, "agent_lost"},
		"in order, as it drained": {&link.GoAwayError{Code: link.GoAwayShutdown}, true, "gone"},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			b := over{newFake("first"), c.err}
			defer s.Join(Agent{ID: "same", Via: "test"}, b).Leave()
			if c.drains {
				b.drain()
			}
			b.end()
			synctest.Wait()
			joinIgnorant(s)
			for _, want := range []string{c.want, "gone"} {
				f := tunnel.NewFlow("tcp", "10.0.0.1:1")
				f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "same"}.route()}
				testutil.Equal(t, s.outcome(f), want, "the answer")
				time.Sleep(tunnel.BackTime)
			}
		})
	}
}

// joinIgnorant adds an agent that knows no connection.
func joinIgnorant(s *setup) *fake {
	f, leave := s.join("ignorant", "same", "")
	s.t.Cleanup(leave)
	f.dial = func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailGone} }
	return f
}

// An agent that had its link to another server, which was lost, may be about to come here.
func TestResumeWaitsForAnAgentOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, _ := shared(t, "default")
		_, _, lost := s.peer(p, "same", "")
		joinIgnorant(s)
		lost()
		for _, want := range []string{"agent_lost", "gone"} {
			f := tunnel.NewFlow("tcp", "10.0.0.1:1")
			f.Resume = &tunnel.Resume{Epoch: 1, Route: Agent{ID: "same"}.route()}
			testutil.Equal(t, s.outcome(f), want, "the answer")
			time.Sleep(tunnel.BackTime)
		}
	})
}
