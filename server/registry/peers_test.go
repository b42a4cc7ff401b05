package registry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
)

// peer joins another server with agents that have these identifiers.
func (s *setup) peer(p *Peers, name, identifiers string) (f *fake, number int, leave func()) {
	s.t.Helper()
	f = newFake(name)
	number, leave, err := p.Join(name, "", f)
	testutil.NoError(s.t, err)
	far := New(nil, []Strategy{Default}, s.log)
	far.Share(p, "far", func(k routes.Key, there bool) {
		op := routes.Gone
		if there {
			op = routes.There
		}
		testutil.Must(p.Learn(number, routes.Record{Op: op, Cluster: "red", Key: k}))(s.t)
	})
	joined := far.Join(Agent{ID: name, Identifiers: testutil.Must(ParseIdentifiers(identifiers))(s.t)}, newFake(""))
	s.t.Cleanup(func() { joined.Leave() })
	return f, number, leave
}

func shared(t *testing.T, strategies string) (*setup, *Peers, map[string]int) {
	s := newSetup(t, strategies)
	told := make(map[string]int)
	p := NewPeers(func(err error) {
		if err == nil {
			told["ok"]++
			return
		}
		told[tunnel.FailureOf(err).Label()]++
	})
	s.Share(p, "red", func(routes.Key, bool) {})
	return s, p, told
}

// While a server starts, a dial goes by the best of all agents, which another server may have yet
// to tell of. Where that one is in a black hole, the dial goes by an agent here, or hears that there
// is none, before its client gives up: it does not wait for each in turn.
func TestADialWaitsForOtherServersOnce(t *testing.T) {
	for name, c := range map[string]struct {
		near   string        // identifiers of an agent here; "": none
		tells  time.Duration // another server, which has an agent for the destination; 0: never
		over   time.Duration // when the start is; 0: never
		local  bool          // another server asks
		want   string
		waited time.Duration
	}{
		"a better one is there":      {"cidr=10.0.0.0/8", 3 * time.Second, 0, false, "far", 3 * time.Second},
		"it tells too late":          {"cidr=10.0.0.0/8", time.Hour, 0, false, "near", Patience},
		"it tells nothing":           {"cidr=10.0.0.0/8", 0, 0, false, "near", Patience},
		"it tells nothing, and none": {"", 0, 0, false, "no_agent", Patience},
		"the start is over":          {"cidr=10.0.0.0/8", 0, time.Second, false, "near", time.Second},
		"another server asks":        {"cidr=10.0.0.0/8", 0, 0, true, "near", 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s, p, _ := shared(t, "destCIDR")
			settled := make(chan struct{})
			s.settled = settled
			if c.near != "" {
				s.agent("near", c.near)
			}
			if c.tells > 0 {
				time.AfterFunc(c.tells, func() {
					s.peer(p, "far", "cidr=10.1.0.0/16")
					p.Settle()
				})
			}
			if c.over > 0 {
				time.AfterFunc(c.over, func() { close(settled) })
			}
			f := tunnel.NewFlow("tcp", "10.1.0.1:1")
			if c.local {
				f.Origin.Server = "b"
			}
			began := time.Now()
			got, took := s.outcome(f), time.Since(began)
			testutil.Holds(t, got == c.want && took == c.waited, "via %s after %v, want %s after %v", got, took, c.want, c.waited)
			time.Sleep(c.tells)
		})
	}
}

// For each strategy in turn, an agent here is asked first and then another server; the
// longer prefix wins wherever it is.
func TestWhoIsAsked(t *testing.T) {
	s, p, told := shared(t, "destHost,destCIDR,defaultRoute")
	testutil.Fails(t, s.Ready(), "ready without an agent anywhere")
	s.peer(p, "far", "host=far.example&host=both.example&cidr=10.1.0.0/16&cidr=10.3.0.0/16&cidr=10.5.0.0/16&default-route=true")
	testutil.Succeeds(t, s.Ready(), "not ready, though another server has an agent")
	near, _ := s.join("near", "a", "host=both.example&cidr=10.0.0.0/8&cidr=10.3.3.0/24&cidr=10.5.0.0/16")
	hops := map[string]tunnel.Hop{"near": {Role: tunnel.RoleAgent, ID: "a"}, "far": {Role: tunnel.RoleServer, ID: "far"}}
	for address, want := range map[string]string{
		"far.example:1": "far", "both.example:1": "near", "10.1.0.1:1": "far", "10.2.0.1:1": "near", "10.3.3.1:1": "near", "10.3.4.1:1": "far", "10.5.0.1:1": "near",
		"elsewhere.example:1": "far", "192.0.2.1:1": "far",
	} {
		f := tunnel.NewFlow("tcp", address)
		testutil.Equal(t, s.outcome(f), want, "%s: via", address)
		testutil.Equal(t, f.Hop, hops[want], "%s: by", address)
	}
	testutil.Equal(t, told["ok"], 5, "dials by servers were told as %v", told)
	forwarded := tunnel.NewFlow("tcp", "far.example:1")
	forwarded.Origin = tunnel.Origin{Server: "another"}
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(s.Dial(t.Context(), forwarded))), tunnel.FailNoAgent,
		"what another server forwarded is forwarded")
	near.drain()
	testutil.Eventually(t, "the agent here is seen to drain", func() bool { return s.Agents()[0].Draining })
	for address, want := range map[string]string{"both.example:1": "far", "10.3.4.1:1": "far", "10.5.0.1:1": "far", "10.2.0.1:1": "near", "10.3.3.1:1": "near"} {
		testutil.Equal(t, s.via(address), want, "%s while an agent leaves: via", address)
	}
	blue := New(nil, []Strategy{DestHost}, s.log)
	blue.Share(p, "blue", func(routes.Key, bool) {})
	_, err := blue.Dial(t.Context(), tunnel.NewFlow("tcp", "far.example:1"))
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailNoAgent, "an agent of another cluster is asked: %v", err)
}

// Every address is in the prefix of no bits, also one of another server's agent.
func TestTheShortestPrefixOfAnotherServer(t *testing.T) {
	s, p, _ := shared(t, "destCIDR")
	s.peer(p, "far", "cidr=::/0")
	testutil.Equal(t, s.via("[2001:db8::1]:1"), "far", "via")
}

// There is a place for so many servers at a time, however many come and go.
func TestPlacesOfServers(t *testing.T) {
	p := NewPeers(func(error) {})
	var leave func()
	for range routes.MaxServers {
		_, leave, _ = p.Join("x", "", newFake("x"))
	}
	_, _, err := p.Join("x", "", newFake("x"))
	testutil.ErrorIs(t, err, ErrManyServers, "one too many")
	leave()
	_, _, err = p.Join("x", "", newFake("x"))
	testutil.Succeeds(t, err, "one in the place of another")
}

// A server that has no agent, or is lost, is asked once, and the next one after it. One
// that drains comes last.
func TestServersThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fails     func() error
		drains    bool
		second    string
		want      string
		liar, far int64
	}{
		"has none":         {func() error { return &tunnel.DialError{Failure: tunnel.FailNoAgent} }, false, "far", "far", 1, 1},
		"is lost":          {func() error { return &tunnel.DialError{Failure: tunnel.FailUnavailable} }, false, "far", "far", 1, 1},
		"drains":           {nil, true, "far", "far", 0, 1},
		"is alone":         {func() error { return &tunnel.DialError{Failure: tunnel.FailNoAgent} }, false, "", "no_agent", 1, 0},
		"what agents say":  {func() error { return &tunnel.DialError{Failure: tunnel.FailRefused} }, false, "", "refused", 1, 0},
		"drains, is alone": {nil, true, "", "liar", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, p, _ := shared(t, "default")
			liar, _, _ := s.peer(p, "liar", "")
			if c.drains {
				liar.drain()
			} else {
				liar.dial = func(context.Context) error { return c.fails() }
			}
			far := newFake("far")
			if c.second != "" {
				liar.streams.Store(0)
				far, _, _ = s.peer(p, "far", "")
				far.streams.Store(100) // so that the other one is asked first
			}
			if got := s.via("x:1"); got != c.want || liar.dials.Load() != c.liar || far.dials.Load() != c.far {
				t.Errorf("via %s, want %s; asked %d and %d times", got, c.want, liar.dials.Load(), far.dials.Load())
			}
		})
	}
}

// A dial that another server's link is lost under waits, too, before it is noticed that all
// that server told is gone.
func TestADialWaitsWhoseServerIsLostUnderIt(t *testing.T) {
	const outage = 400 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s, p, _ := shared(t, "destHost")
		f, _, leave := s.peer(p, "far", "host=h")
		f.dial = func(context.Context) error {
			f.end()
			time.AfterFunc(time.Millisecond, leave)
			time.AfterFunc(outage, func() { s.join("near", "a", "host=h") })
			return &tunnel.DialError{Failure: tunnel.FailAgentLost}
		}
		s.goes("h:1", "near", outage)
		time.Sleep(2 * tunnel.BackTime)
	})
}

// A dial waits for the agent of a server that was lost, wherever that agent comes back.
func TestDialsWaitForAgentsOfAnotherServer(t *testing.T) {
	const outage = 400 * time.Millisecond
	for name, c := range map[string]struct {
		back func(s *setup, p *Peers)
		want string
		took time.Duration
	}{
		"here":              {func(s *setup, _ *Peers) { s.join("near", "a", "host=h") }, "near", outage},
		"at another server": {func(s *setup, p *Peers) { s.peer(p, "next", "host=h") }, "next", outage},
		"nowhere":           {func(*setup, *Peers) {}, "no_agent", tunnel.BackTime},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s, p, _ := shared(t, "destHost")
			f, _, leave := s.peer(p, "far", "host=h")
			f.end()
			leave()
			time.AfterFunc(outage, func() { c.back(s, p) })
			s.goes("h:1", c.want, c.took)
			time.Sleep(2 * tunnel.BackTime)
			testutil.Equal(t, s.via("other:1"), "no_agent", "how it is served")
			_, _, leave = s.peer(p, "later", "host=other")
			leave()
			time.Sleep(2 * tunnel.BackTime)
			p.mu.RLock()
			defer p.mu.RUnlock()
			_, kept := p.table.Due()
			testutil.Holds(t, !kept, "what is waited for no more is kept")
		})
	}
}
