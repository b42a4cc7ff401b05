package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// fake is a backend in memory.
type fake struct {
	name    string
	streams atomic.Int64

	ends, drains tunnel.Event
	err          error // set before it ends

	dial  func(ctx context.Context) error
	dials atomic.Int64
	looks atomic.Int64 // how often its load was asked for
}

func newFake(name string) *fake {
	return &fake{name: name}
}

type fakeConn struct {
	tunnel.Conn
	via *fake
}

func (f *fake) Dial(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
	f.dials.Add(1)
	if f.dial != nil {
		if err := f.dial(ctx); err != nil {
			return nil, err
		}
	}
	return fakeConn{via: f}, nil
}

func (f *fake) Ends() *tunnel.Event { return &f.ends }

func (f *fake) Drains() *tunnel.Event { return &f.drains }

func (f *fake) end() { f.ends.Happen() }

func (f *fake) drain() { f.drains.Happen() }

func (f *fake) Streams() int { f.looks.Add(1); return int(f.streams.Load()) }

func (f *fake) RTT() time.Duration { return 0 }

func (f *fake) Err() error { return f.err }

// setup is a registry with agents that leave as the test ends.
type setup struct {
	*Registry
	t *testing.T
}

func newSetup(t *testing.T, list string) *setup {
	t.Helper()
	strategies := testutil.Must(ParseStrategies(list))(t)
	return &setup{New(nil, strategies, logging.Silent()), t}
}

func (s *setup) agent(id, identifiers string) *fake {
	s.t.Helper()
	f, leave := s.join(id, id, identifiers)
	s.t.Cleanup(leave)
	return f
}

func (s *setup) join(name, id, identifiers string) (*fake, func()) {
	s.t.Helper()
	ids := testutil.Must(ParseIdentifiers(identifiers))(s.t)
	f := newFake(name)
	joined := s.Join(Agent{ID: id, Identifiers: ids, Via: "test", Remote: "192.0.2.1:1"}, f)
	return f, func() { joined.Leave() }
}

// via says whose backend served a dial, or the failure's label.
func (s *setup) via(address string) string { return s.outcome(tunnel.NewFlow("tcp", address)) }

func (s *setup) outcome(f *tunnel.Flow) string {
	c, err := s.Dial(context.Background(), f)
	if err != nil {
		return tunnel.FailureOf(err).Label()
	}
	return c.(fakeConn).via.name
}

// goes fails unless a dial goes via that backend, or fails so, after that time.
func (s *setup) goes(address, want string, after time.Duration) {
	s.t.Helper()
	began := time.Now()
	got, took := s.via(address), time.Since(began)
	testutil.Holds(s.t, got == want && took == after, "via %s after %v, want %s after %v", got, took, want, after)
}

func (s *setup) always(address, want string) {
	s.t.Helper()
	for range 20 {
		got := s.via(address)
		testutil.Requires(s.t, got == want, "%s went via %s, want %s", address, got, want)
	}
}

func TestRouting(t *testing.T) {
	for _, tc := range []struct{ strategies, address, want string }{
		// destHost, any spelling of an address
		{"destHost", "10.0.0.1:443", "four"},
		{"destHost", "[::ffff:10.0.0.1]:443", "four"},
		{"destHost", "[2001:db8::1]:443", "six"},
		{"destHost", "[2001:0DB8:0:0:0:0:0:1]:443", "six"},
		{"destHost", "[fe80::1%eth0]:443", "six"},
		{"destHost", "Web.Example.:80", "host"},
		{"destHost", "web.example:80", "host"},
		{"destHost", "10.9.9.9:80", "no_agent"},
		{"destHost", "other.example:80", "no_agent"},
		// a host identifier that is an address
		{"destHost", "10.0.0.7:80", "host"},
		// destCIDR, longest prefix
		{"destCIDR", "10.1.2.3:1", "cidr24"},
		{"destCIDR", "10.1.9.9:1", "cidr16"},
		{"destCIDR", "[::ffff:10.1.2.3]:1", "cidr24"},
		{"destCIDR", "[2001:db8:7::5]:1", "cidr6"},
		{"destCIDR", "[2001:db8:8::5]:1", "no_agent"},
		{"destCIDR", "name.example:1", "no_agent"},
		// the order given decides
		{"destHost,destCIDR,defaultRoute", "10.1.2.9:1", "four"},
		{"destCIDR,destHost,defaultRoute", "10.1.2.9:1", "cidr24"},
		{"destHost,defaultRoute", "203.0.113.1:1", "route"},
		{"defaultRoute,destHost", "10.0.0.1:1", "route"},
		// bad addresses are no agent's business
		{"default", "10.0.0.1", "bad_address"},
		{"default", ":80", "bad_address"},
		{"default", strings.Repeat("a", 300) + ":80", "bad_address"},
		{"default", "10.0.0.1:0", "bad_address"},
	} {
		t.Run(tc.strategies+" "+tc.address[:min(len(tc.address), 40)], func(t *testing.T) {
			s := newSetup(t, tc.strategies)
			s.agent("four", "ipv4=10.0.0.1&ipv4=10.1.2.9")
			s.agent("six", "ipv6=2001:db8::1&ipv6=fe80::1")
			s.agent("host", "host=WEB.example&host=10.0.0.7")
			s.agent("cidr16", "cidr=10.1.0.0/16")
			s.agent("cidr24", "cidr=10.1.2.77/24")
			s.agent("cidr6", "cidr=2001:db8:7::/48")
			s.agent("route", "default-route=true")
			s.always(tc.address, tc.want)
		})
	}
}

func TestZoneIsComparedWhenAgentHasOne(t *testing.T) {
	s := newSetup(t, "destHost")
	s.agent("eth0", "ipv6=fe80::1%25eth0")
	s.agent("eth1", "ipv6=fe80::1%25eth1")
	s.always("[fe80::1%eth1]:80", "eth1")
	s.always("[fe80::1%eth0]:80", "eth0")
	s.always("[fe80::1]:80", "no_agent")
}

func TestPrefixesHaveAddressesOfTheirFamily(t *testing.T) {
	s := newSetup(t, "destCIDR")
	s.agent("six", "cidr=::/0")
	s.always("10.0.0.1:80", "no_agent")
	s.agent("four", "cidr=0.0.0.0/0")
	s.always("10.0.0.1:80", "four")
	s.always("[2001:db8::1]:80", "six")
	s.always("[fe80::1%eth0]:80", "six")
}

func TestEveryAgentGetsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where all dials take as long
		s := newSetup(t, "default")
		got := map[string]int{}
		for i := range 10 {
			s.agent(fmt.Sprint("a", i), "")
		}
		for range 2000 {
			got[s.via("x:1")]++
		}
		for i := range 10 {
			testutil.AtLeast(t, got[fmt.Sprint("a", i)], 50, "dials of agent %d", i)
		}
	})
}

func TestLeastLoadedOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where all dials take as long
		s := newSetup(t, "default")
		s.agent("busy", "").streams.Store(100)
		s.agent("idle", "").streams.Store(3)
		s.always("x:1", "idle") // of two agents, both are looked at
	})
}

func TestSlowAgentShedsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "default")
		delay := func(d time.Duration) func(context.Context) error {
			return func(context.Context) error { time.Sleep(d); return nil }
		}
		var all []*fake
		for i := range 4 {
			f, leave := s.join(fmt.Sprint("a", i), fmt.Sprint("a", i), "")
			defer leave()
			f.dial = delay(10 * time.Millisecond)
			all = append(all, f)
		}
		all[0].dial = delay(100 * time.Millisecond)
		var wg sync.WaitGroup
		for range 3000 { // an open loop of 200 dials a second
			wg.Go(func() { s.via("x:1") })
			time.Sleep(5 * time.Millisecond)
		}
		wg.Wait()
		n := all[0].dials.Load()
		testutil.Holds(t, n != 0 && n <= 150, "the agent 10 times slower got %d of 3000 dials, want some and less than 5 %%", n)
	})
}

// An agent that denies what it is asked for answers at once and carries nothing,
// and is asked now and then all the same.
func TestDenyingAgentIsNotPreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "default")
		denying, serving := s.agent("denying", ""), s.agent("serving", "")
		denying.dial = func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailDenied} }
		serving.dial = func(context.Context) error { serving.streams.Add(1); return nil }
		ask := func(d time.Duration) {
			for range d / (10 * time.Millisecond) {
				s.via("x:1")
				time.Sleep(10 * time.Millisecond)
			}
		}
		ask(time.Minute)
		n := denying.dials.Load()
		testutil.Holds(t, n != 0 && n <= 10, "%d of %d dials were denied", n, n+serving.dials.Load())
		denying.dial = nil
		before := denying.dials.Load()
		ask(maxDenialTime + time.Second)
		testutil.AtLeast(t, denying.dials.Load(), before+10, "dials of one that denies no more")
		for _, f := range []*fake{denying, serving} {
			f.dial = func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailDenied} }
			f.streams.Store(0)
			f.dials.Store(0)
		}
		time.Sleep(5 * time.Minute) // until both are as quick as can be
		ask(10 * time.Second)
		a, b := denying.dials.Load(), serving.dials.Load()
		testutil.Holds(t, a >= 100 && b >= 100, "where both deny, they get %d and %d dials", a, b)
	})
}

// A clock that is set, forward or back, changes nothing about how long ago an agent
// has answered: that is counted from the start of the process.
func TestAClockThatIsSetChangesNothing(t *testing.T) {
	s := newSetup(t, "default")
	f := s.agent("a", "")
	s.via("x:1")
	f.dial = func(context.Context) error { return &tunnel.DialError{Failure: tunnel.FailDenied} }
	s.via("x:1")
	l := &s.index.first(Agent{ID: "a"}).load
	for what, at := range map[string]int64{"an answer": l.updated.Load(), "a denial": l.denied.Load()} {
		testutil.Holds(t, at > 0 && tunnel.Moment(at) <= tunnel.Now(), "%s came at the moment %d", what, at)
	}
}

func TestFrozenAgentIsAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "default")
		for _, name := range []string{"frozen", "well"} {
			f, leave := s.join(name, name, "")
			defer leave()
			if name == "frozen" {
				f.dial = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			}
		}
		failed, wg := atomic.Int64{}, sync.WaitGroup{}
		for range 1000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if _, err := s.Dial(ctx, tunnel.NewFlow("tcp", "x:1")); err != nil {
					failed.Add(1)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
		testutil.AtMost(t, failed.Load(), 10, "of 1000 dials, a frozen agent got")
	})
}

func TestDrainingIsFallback(t *testing.T) {
	s := newSetup(t, "destHost,default")
	a := s.agent("a", "ipv4=10.0.0.1")
	s.agent("b", "ipv4=10.0.0.1")
	a.drain()
	testutil.Eventually(t, "a is seen to drain", func() bool { return s.Agents()[0].Draining })
	s.always("10.0.0.1:1", "b")
	s.always("x:1", "b")

	other := newSetup(t, "default")
	c := other.agent("c", "")
	c.drain()
	testutil.Eventually(t, "c is seen to drain", func() bool { return other.Agents()[0].Draining })
	other.always("x:1", "c")
	testutil.Succeeds(t, other.Ready(), "a draining agent still serves")
}

func TestFirstConnectionOfAnAgentIsPreferred(t *testing.T) {
	s := newSetup(t, "default")
	first, leaveFirst := s.join("first", "same", "")
	_, leaveSecond := s.join("second", "same", "")
	defer leaveSecond()
	s.always("x:1", "first")
	c := s.Counts()
	testutil.Holds(t, c.Agents == 1 && len(s.Agents()) == 2 && c.By[Default] == 1, "counts %+v, want one agent with two connections", c)
	first.drain()
	testutil.Eventually(t, "the second takes over", func() bool { return s.via("x:1") == "second" })
	leaveFirst()
	leaveFirst()
	s.always("x:1", "second")
}

func TestDoneIsTakenOutBeforeLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "default,destCIDR")
		f := s.agent("gone", "cidr=10.0.0.0/8")
		f.end()
		testutil.Eventually(t, "it is out", func() bool { return len(s.Agents()) == 0 })
		s.always("10.0.0.1:1", "no_agent")
	})
}

func TestRetryElsewhereOnce(t *testing.T) {
	fail := func(f tunnel.Failure) func(context.Context) error {
		return func(context.Context) error { return &tunnel.DialError{Failure: f} }
	}
	for what, c := range map[string]struct {
		strategies string
		failure    tunnel.Failure
		other      string        // the id of the agent that could serve, too
		window     time.Duration // of a connection that its opener dials again
		want       string
	}{
		"agent lost":                          {"default", tunnel.FailAgentLost, "good", 0, "good"},
		"second connection of the same agent": {"default", tunnel.FailUnavailable, "bad", 0, "good"},
		"by the next strategy":                {"destHost,default", tunnel.FailExhausted, "good", 0, "good"},
		"what its opener repeats":             {"destHost,default", tunnel.FailAgentLost, "good", time.Minute, "agent_lost"},
		"what it does not":                    {"destHost,default", tunnel.FailExhausted, "good", time.Minute, "good"},
		"the destination's failure":           {"destHost,default", tunnel.FailRefused, "good", 0, "refused"},
	} {
		s := newSetup(t, c.strategies)
		bad := s.agent("bad", "ipv4=10.0.0.1")
		bad.dial = fail(c.failure)
		good, leave := s.join("good", c.other, "")
		defer leave()
		for range 20 {
			f := tunnel.NewFlow("tcp", "10.0.0.1:1")
			if c.window > 0 {
				f.Resume = &tunnel.Resume{Window: c.window}
			}
			testutil.Equal(t, s.outcome(f), c.want, "%s: via", what)
		}
		testutil.Holds(t, bad.dials.Load() > 0 && (c.want == "good") == (good.dials.Load() > 0),
			"%s: %d dials failed, %d were made elsewhere", what, bad.dials.Load(), good.dials.Load())
	}
	unjudged := func(context.Context) error { return tunnel.NewFlow("tcp", "").Unjudged() }
	rules := newSetup(t, "destHost,default")
	rules.agent("old", "ipv4=10.0.0.1").dial = unjudged
	rules.agent("other", "")
	rules.always("10.0.0.1:1", tunnel.FailureOf(unjudged(nil)).Label())
	rules.agent("new", "ipv4=10.0.0.1")
	rules.always("10.0.0.1:1", "new") // by the same strategy, where rules are known

	s := newSetup(t, "default")
	var all []*fake
	for i := range 5 {
		f := s.agent(fmt.Sprint(i), "")
		f.dial = fail(tunnel.FailAgentLost)
		all = append(all, f)
	}
	testutil.Equal(t, s.via("x:1"), "agent_lost", "the outcome, where all are lost")
	total := int64(0)
	for _, f := range all {
		total += f.dials.Load()
	}
	testutil.Equal(t, total, 2, "dials, where all are lost")
	ctx, cancel := context.WithCancel(context.Background())
	leaves := newSetup(t, "default")
	one, two := leaves.agent("one", ""), leaves.agent("two", "")
	one.dial = func(context.Context) error { cancel(); return &tunnel.DialError{Failure: tunnel.FailAgentLost} }
	two.dial = one.dial
	testutil.Fails(t, testutil.Err(leaves.Dial(ctx, tunnel.NewFlow("tcp", "x:1"))), "a dial of a caller that left")
	testutil.Equal(t, one.dials.Load()+two.dials.Load(), 1, "dials for a caller that left")
}

func TestReady(t *testing.T) {
	for _, tc := range []struct{ strategies, agents, want string }{
		{"default", "", "no connection to any proxy agent"},
		{"default", "host=x", ""},
		{"destHost,default", "default-route=true", ""},
		{"destHost,defaultRoute", "host=x", "default-route=true"},
		{"destHost,defaultRoute", "host=x default-route=true", ""},
		{"destHost", "default-route=true", "none with identifiers"},
		{"destHost,destCIDR", "cidr=10.0.0.0/8", ""},
		{"destHost", "ipv4=10.0.0.1", ""},
		{"destCIDR", "host=x", "none with identifiers"},
	} {
		s := newSetup(t, tc.strategies)
		for i, ids := range strings.Fields(tc.agents) {
			s.agent(fmt.Sprint(i), ids)
		}
		testutil.ErrorSays(t, s.Ready(), tc.want, "%s with %q", tc.strategies, tc.agents)
	}
}

// TestNoLockOverDial fails (by hanging) if a dial held the registry's lock.
func TestNoLockOverDial(t *testing.T) {
	s := newSetup(t, "default")
	inside, release := make(chan struct{}), make(chan struct{})
	s.agent("a", "").dial = func(context.Context) error { close(inside); <-release; return errors.New("x") }
	var wg sync.WaitGroup
	wg.Go(func() { s.via("x:1") })
	<-inside
	_, leave := s.join("b", "b", "")
	leave()
	close(release)
	wg.Wait()
}

// However agents come and go at the same time, nothing of them is left in the end.
func TestConcurrentUse(t *testing.T) {
	s := newSetup(t, "destHost,destCIDR,defaultRoute,default")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				f, leave := s.join("x", fmt.Sprint(i, j%3), fmt.Sprintf(
					"ipv4=10.0.0.%d&host=h%d&cidr=10.%d.0.0/%d&default-route=true", j%5, j%3, j%4, 10+j%6))
				if j%2 == 0 {
					f.drain()
				}
				if j%5 == 0 {
					f.end()
				}
				s.via(net.JoinHostPort("10.0.0.1", "80"))
				s.via("name:80")
				_ = s.Ready()
				s.Agents()
				leave()
			}
		})
	}
	wg.Wait()
	x := &s.index
	testutil.Equal(t, x.keyed.Len()+len(x.lengths)+x.all.count()+len(x.all.serving)+len(x.all.rest), 0,
		"left over: %+v", x)
}

// TestPickLooksAtTwo: how many agents there are must not tell in a dial's time,
// so a pick compares two of them instead of all.
func TestPickLooksAtTwo(t *testing.T) {
	s := newSetup(t, "default")
	var all []*fake
	for i := range 500 {
		all = append(all, s.agent(fmt.Sprint(i), ""))
	}
	const picks = 1000
	for range picks {
		s.pick("a.name.example", &none)
	}
	looks := int64(0)
	for _, f := range all {
		looks += f.looks.Load()
	}
	testutil.AtMost(t, looks, 2*picks, "agents that were looked at")
}

// An agent that comes back by another address is no second one of its id, unless the link of before
// goes on.
func TestAnAgentThatComesBackIsNoSecond(t *testing.T) {
	for _, goesOn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log, lines := logtest.NewNullLogger()
			r, before := New(nil, []Strategy{Default}, log), newFake("before")
			defer r.Join(Agent{ID: "node-1", Remote: "192.0.2.1:1"}, before).Leave()
			defer r.Join(Agent{ID: "node-1", Remote: "192.0.2.2:1"}, newFake("back")).Leave()
			if !goesOn {
				before.end()
			}
			time.Sleep(stayTime)
			synctest.Wait()
			testutil.Equal(t, testutil.Lines(lines, "two agents on different hosts") > 0, goesOn, "there is a warning")
		})
	}
}

// TestAnIdIsNoProof: an agent that calls itself like another but is somebody
// else takes no work away from it, in whatever order they come; it is told of.
func TestAnIdIsNoProof(t *testing.T) {
	for _, order := range [][]string{{"true", "rogue"}, {"rogue", "true"}} {
		synctest.Test(t, func(t *testing.T) { // where all dials take as long
			var lines strings.Builder
			log := logrus.New()
			log.SetOutput(&lines)
			r := New(nil, []Strategy{Default}, log)
			backends := map[string]*fake{}
			for _, who := range order {
				backends[who] = newFake(who)
				defer r.Join(Agent{ID: "node-1", Cert: who, Remote: "192.0.2.1:1"}, backends[who]).Leave()
			}
			for range 200 {
				testutil.Must(r.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
			}
			for who, b := range backends {
				testutil.AtLeast(t, b.dials.Load(), 40, "%s came first: dials of the %s agent", order[0], who)
			}
			time.Sleep(stayTime)
			synctest.Wait()
			testutil.Contains(t, lines.String(), "different certificates use the same id", "the log says")
		})
	}
}

// Two agents with one id are told apart by their certificates, and the index
// forgets an id with its last agent.
func TestIdsOfTwo(t *testing.T) {
	r := New(nil, []Strategy{Default}, logging.Silent())
	a, b := r.Join(Agent{ID: "x", Cert: "a"}, newFake("a")), r.Join(Agent{ID: "x", Cert: "b"}, newFake("b"))
	if other := r.Join(Agent{ID: "y"}, newFake("y")); !a.First || b.First || !other.First || r.Counts().Agents != 3 || !other.Leave() {
		t.Errorf("first: %v, %v, another: %v, %d agents", a.First, b.First, other.First, r.Counts().Agents)
	}
	for _, cert := range []string{"a", "b"} {
		testutil.Equal(t, r.index.first(Agent{ID: "x", Cert: cert}).agent.Cert, cert, "the agent of certificate %s is", cert)
	}
	testutil.Holds(t, !a.Leave(), "an id has gone that another agent has")
	c := r.index.first(Agent{ID: "x", Cert: "a"})
	testutil.Holds(t, c != nil && c.agent.Cert == "b", "the other with this id is not found")
	for _, call := range []string{"first", "second"} {
		testutil.Equal(t, b.Leave(), true, "the %s call says that the last has left:", call)
	}
	testutil.Equal(t, r.index.keyed.Len(), 0, "keys that are remembered:")
}

// telling is a backend that knows when its agent was heard last.
type telling struct {
	*fake
	last time.Time
}

func (f *telling) Heard() time.Time { return f.last }

// A dial that runs out of time is the agent's fault only if the agent itself
// was silent.
func TestTheAgentIsBlamedWhereItIsSilent(t *testing.T) {
	for name, c := range map[string]struct {
		heard  time.Duration // when, after the dial began
		known  bool
		blamed bool
	}{
		"silent since before": {-time.Second, true, true},
		"heard meanwhile":     {4 * time.Second, true, false},
		"not known":           {0, false, false},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			b := &telling{fake: newFake("a1")}
			b.dial = func(ctx context.Context) error {
				<-ctx.Done()
				return tunnel.AsDialError("a:1", ctx.Err())
			}
			if c.known {
				b.last = time.Now().Add(c.heard)
			}
			s := newSetup(t, "default")
			defer s.Join(Agent{ID: "a1", Via: "link"}, b).Leave()
			ctx := testutil.ContextFor(t, 10*time.Second)
			_, err := s.Dial(ctx, tunnel.NewFlow("tcp", "a:1"))
			text := tunnel.AsDialError("", err).Text()
			testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailTimeout &&
				strings.Contains(text, "the agent does not answer") == c.blamed, "%v: %q", tunnel.FailureOf(err), text)
		})
	}
}
