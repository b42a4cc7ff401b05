package agent

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/peers"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// direct gives n servers an address each, under one name.
func direct(w *world, ids ...string) []string {
	var addrs []string
	for i, id := range ids {
		a := fmt.Sprintf("10.0.0.%d", i+1)
		addrs = append(addrs, a)
		w.balance(a+":8091", id)
	}
	w.start(ids...)
	w.setNames("servers.example", addrs...)
	w.setCount(len(ids))
	return []string{"servers.example:8091"}
}

// balanced puts servers behind one address.
func balanced(w *world, ids ...string) []string {
	w.balance("10.0.0.1:8091", ids...)
	w.start(ids...)
	w.setCount(len(ids))
	return []string{"10.0.0.1:8091"}
}

// searches counts waits for servers that are found by chance, behind a balancer: some in
// a thousand take longer than is promised.
type searches struct{ all, late int }

// searchRuns is how often a test is run to have so many.
const searchRuns = 20

// within waits until exactly want are connected, and notes whether that took longer than
// bound.
func (s *searches) within(b *bench, bound time.Duration, want ...string) {
	b.t.Helper()
	s.all++
	if b.within(bound+2*time.Minute, want...) > bound {
		s.late++
	}
}

// judge wants at most one in 25 to have been late, and without a balancer none.
func (s *searches) judge(t *testing.T, behind string) {
	t.Helper()
	most := 0
	if behind == "balancer" {
		most = s.all / 25
	}
	testutil.AtMost(t, s.late, most, "of %d searches, so many were late", s.all)
}

// Each of three servers is replaced in turn: 3 of 3 within 15 s of its coming.
func TestReplacedServers(t *testing.T) {
	for _, behind := range []string{"name", "balancer"} {
		for _, outage := range []time.Duration{0, 2 * time.Second, 20 * time.Second} {
			t.Run(fmt.Sprint(behind, outage), func(t *testing.T) {
				var s searches
				for range searchRuns {
					replaceServers(t, &s, behind, outage)
				}
				s.judge(t, behind)
			})
		}
	}
}

func replaceServers(t *testing.T, s *searches, behind string, outage time.Duration) {
	w := newWorld()
	ids := []string{"a", "b", "c"}
	servers := balanced(w, ids...)
	if behind == "name" {
		servers = direct(w, ids...)
	}
	inWorld(t, w, servers, nil, func(b *bench) {
		s.within(b, 10*time.Second, ids...)
		for i := range ids {
			time.Sleep(30 * time.Second)
			w.stop(ids[i])
			if behind == "balancer" {
				w.balance("10.0.0.1:8091", append(append([]string{}, ids[:i]...), ids[i+1:]...)...)
			}
			time.Sleep(outage)
			ids[i] += "'"
			w.start(ids[i])
			if behind == "balancer" {
				w.balance("10.0.0.1:8091", ids...)
			} else { // a new address, as a new pod has
				w.balance(fmt.Sprintf("10.0.1.%d:8091", i+1), ids[i])
				w.rename("servers.example", i, fmt.Sprintf("10.0.1.%d", i+1))
			}
			s.within(b, 15*time.Second, append([]string{}, ids...)...)
		}
	})
}

// 2 → 6 → 2 servers: right within 30 s, for old servers that tell the count
// only at connect, and new ones that tell it when it changes.
func TestScaling(t *testing.T) {
	for _, behind := range []string{"name", "balancer"} {
		for _, protocol := range []string{protocolGRPC, protocolLink} {
			for _, settled := range []time.Duration{0, time.Minute} { // long since, or not even
				t.Run(fmt.Sprint(behind, " ", protocol, " ", settled), func(t *testing.T) {
					var s searches
					for range searchRuns {
						scale(t, &s, behind, protocol, settled)
					}
					s.judge(t, behind)
				})
			}
		}
	}
}

func scale(t *testing.T, s *searches, behind, protocol string, settled time.Duration) {
	w := newWorld()
	w.protocol = protocol
	few, many := []string{"a", "b"}, []string{"a", "b", "c", "d", "e", "f"}
	lead := func(ids []string) []string {
		if behind == "name" {
			return direct(w, ids...)
		}
		return balanced(w, ids...)
	}
	servers := lead(few)
	inWorld(t, w, servers, nil, func(b *bench) {
		s.within(b, 10*time.Second, "a", "b")
		time.Sleep(settled)
		lead(many)
		s.within(b, 30*time.Second, many...)
		time.Sleep(settled)
		w.stop("c", "d", "e", "f")
		w.balance("10.0.0.1:8091", map[bool][]string{true: {"a"}, false: few}[behind == "name"]...)
		w.setNames("servers.example", "10.0.0.1", "10.0.0.2")
		w.setCount(2)
		s.within(b, 30*time.Second, "a", "b")
		time.Sleep(20 * time.Second)
		testutil.Equal(t, promtest.ToFloat64(b.agent.metrics.knownServers), 2, "servers it believes in")
	})
}

// A server that is down is tried forever, ever more rarely, and logged once.
func TestBackoff(t *testing.T) {
	w := newWorld()
	w.balance("10.0.0.1:8091", "a")
	inWorld(t, w, []string{"10.0.0.1:8091"}, nil, func(b *bench) {
		time.Sleep(time.Hour)
		n := w.attemptsSince(time.Time{})
		testutil.Between(t, n, 3600/10, 3600/5+10, "attempts in an hour")
		testutil.Equal(t, b.log.count(), 1, "log lines: %v", b.log.since(0))
		gaps := map[time.Duration]bool{}
		for i := n - 10; i < n; i++ {
			gaps[w.attempts[i].Sub(w.attempts[i-1]).Truncate(time.Millisecond)] = true
		}
		testutil.AtLeast(t, len(gaps), 5, "different pauses: %v", gaps)
		w.start("a")
		b.within(11*time.Second, "a")
	})
}

// With nothing missing an agent is quiet: few probes, no log lines.
func TestIdle(t *testing.T) {
	for protocol, most := range map[string]int{protocolGRPC: 3600 / 10, protocolLink: 3600 / 30} {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld()
			w.protocol = protocol
			servers := direct(w, "a", "b", "c")
			inWorld(t, w, servers, nil, func(b *bench) {
				b.within(5*time.Second, "a", "b", "c")
				start, before := time.Now(), b.log.count()
				time.Sleep(time.Hour)
				testutil.AtMost(t, w.attemptsSince(start), most, "attempts in an hour")
				testutil.Equal(t, b.log.count()-before, 0, "log lines while idle: %v", b.log.since(before))
				b.within(0, "a", "b", "c")
			})
		})
	}
}

// A balancer that sends some attempts nowhere causes a line, not one each time.
func TestBalancerWithADeadEnd(t *testing.T) {
	for count, missing := range map[int]string{2: "none", 3: "one"} {
		w := newWorld()
		servers := balanced(w, "a", "b")
		w.balance("10.0.0.1:8091", "a", "b", "gone")
		w.setCount(count)
		inWorld(t, w, servers, nil, func(b *bench) {
			b.within(10*time.Minute, "a", "b") // a third of the attempts, picked at random, go nowhere
			before := b.log.count()
			time.Sleep(time.Hour)
			testutil.AtMost(t, b.log.count()-before, 1, "%s missing: log lines in an hour: %v", missing, b.log.since(before))
			b.within(0, "a", "b")
		})
	}
}

// A draining server is replaced, and its session left alone until it ends.
func TestDrainingServer(t *testing.T) {
	w := newWorld()
	servers := direct(w, "a", "b")
	inWorld(t, w, servers, nil, func(b *bench) {
		b.within(5*time.Second, "a", "b")
		time.Sleep(10 * time.Second)
		old := w.first("a")
		old.drains.Happen()
		w.refuse("a") // it listens no more
		w.start("c")
		w.balance("10.0.0.3:8091", "c")
		w.setNames("servers.example", "10.0.0.2", "10.0.0.3")
		b.within(15*time.Second, "a", "b", "c")
		time.Sleep(10 * time.Second)
		testutil.Holds(t, !tunnel.Closed(old.Done()), "the draining session was closed by the agent")
		old.end(nil)
		b.within(time.Second, "b", "c")
	})
}

// What a server has dialed through a session that is one too many goes on to its end; by
// links, which say that they are duplicates, it moves.
func TestDuplicateWithConnections(t *testing.T) {
	for _, protocol := range []string{protocolGRPC, protocolLink} {
		w := newWorld()
		w.protocol = protocol
		w.balance("10.0.0.1:8091", "a")
		w.balance("10.0.0.2:8091", "a")
		w.start("a")
		w.servers["a"].dials = 1
		inWorld(t, w, []string{"10.0.0.1:8091", "10.0.0.2:8091"}, nil, func(b *bench) {
			b.within(time.Second, "a")
			time.Sleep(3 * drainQuiet)
			s := w.servers["a"].sessions[1]
			if b.agent.set.peers.Members()[0].Session == session(s) { // both dial at once, and either may win
				s = w.servers["a"].sessions[0]
			}
			testutil.Equal(t, !tunnel.Closed(s.Done()), protocol == protocolGRPC, "%s: the duplicate's connection was kept", protocol)
			s.setStreams(0)
			time.Sleep(2 * drainQuiet)
			testutil.Holds(t, (s.drained || protocol != protocolGRPC) && tunnel.Closed(s.Done()),
				"%s: the duplicate drained: %v, ended: %v", protocol, s.drained, tunnel.Closed(s.Done()))
		})
	}
}

// wantLeaving wants as many sessions as may take their time about their end, and a few.
func (b *bench) wantLeaving() {
	b.t.Helper()
	synctest.Wait()
	b.world.mu.Lock()
	defer b.world.mu.Unlock()
	testutil.Between(b.t, b.world.open, maxLeaving, maxLeaving+10, "sessions")
}

// A server whose connections through duplicates never end.
func TestDuplicatesThatNeverEnd(t *testing.T) {
	w := newWorld()
	servers := balanced(w, "a")
	w.servers["a"].dials = 1
	w.setCount(2)
	inWorld(t, w, servers, nil, func(b *bench) {
		time.Sleep(maxLeaving * 10 * time.Second)
		b.wantLeaving()
	})
}

// A server that tells each new session that it is about to go, under a new id each
// time, and does not go.
func TestServerThatNeverGoes(t *testing.T) {
	w := newWorld()
	var ids []string
	for i := range 8 * maxLeaving {
		ids = append(ids, fmt.Sprint("server-", i))
	}
	servers := balanced(w, ids...)
	for _, id := range ids {
		w.servers[id].drains = true
	}
	inWorld(t, w, servers, nil, func(b *bench) {
		time.Sleep(2 * maxLeaving * DefaultSyncInterval)
		b.wantLeaving()
	})
}

func TestNamesThatFail(t *testing.T) {
	w := newWorld()
	servers := direct(w, "a", "b")
	inWorld(t, w, servers, nil, func(b *bench) {
		b.within(5*time.Second, "a", "b")
		w.mu.Lock()
		w.dnsFails = true
		w.mu.Unlock()
		before := b.log.count()
		time.Sleep(10 * time.Minute)
		testutil.Equal(t, b.log.count()-before, 1, "log lines: %v", b.log.since(before))
		b.within(0, "a", "b")
		w.stop("a")
		w.start("a")
		b.within(3*time.Second, "a", "b") // by the address known
	})
}

// An address that swallows attempts delays no other.
func TestHangingAddress(t *testing.T) {
	w := newWorld()
	servers := direct(w, "a", "b", "c")
	w.hangs["10.0.0.1:8091"] = true
	inWorld(t, w, servers, nil, func(b *bench) {
		b.within(time.Second, "b", "c")
		w.mu.Lock()
		delete(w.hangs, "10.0.0.1:8091")
		w.mu.Unlock()
		b.within(2*connectTimeout, "a", "b", "c")
	})
}

func TestStopWhileConnecting(t *testing.T) {
	w := newWorld()
	w.hangs["10.0.0.1:8091"] = true
	inWorld(t, w, []string{"10.0.0.1:8091"}, nil, func(b *bench) {
		time.Sleep(time.Second)
		start := time.Now()
		b.stop()
		testutil.AtMost(t, time.Since(start), 2*time.Second, "stopping took")
	})
}

func TestReady(t *testing.T) {
	w := newWorld()
	servers := direct(w, "a")
	inWorld(t, w, servers, nil, func(b *bench) {
		b.within(time.Second, "a")
		testutil.Succeeds(t, b.agent.Ready(), "with a server")
		w.stop("a")
		synctest.Wait()
		testutil.Fails(t, b.agent.Ready(), "ready without a server")
		time.Sleep(time.Minute)
		testutil.ErrorSays(t, b.agent.Trouble(), "10.0.0.1:8091", "it does not say what it tried")
	})
}

type fixedCount struct {
	n  int
	ok bool
}

func (c fixedCount) Count() (int, bool) { return c.n, c.ok }

func TestWant(t *testing.T) {
	for _, c := range []struct {
		heard  int
		leases Counter
		source CountSource
		want   int
	}{
		{0, nil, "", 1},
		{3, nil, CountDefault, 3},
		{3, nil, CountMax, 3},
		{3, fixedCount{2, true}, CountDefault, 2},
		{3, fixedCount{2, true}, CountMax, 3},
		{2, fixedCount{5, true}, CountMax, 5},
		{3, fixedCount{0, false}, CountDefault, 3},
		{0, fixedCount{0, false}, CountMax, 1},
		{3, fixedCount{0, true}, CountDefault, 1},
	} {
		s := &set{opts: Options{Leases: c.leases, CountSource: c.source}}
		testutil.Equal(t, s.want(c.heard), c.want, "%+v", c)
	}
}

func TestDrain(t *testing.T) {
	run := func(t *testing.T, grace time.Duration, during func(*fakeSession)) time.Duration {
		var took time.Duration
		w := newWorld()
		servers := direct(w, "a")
		inWorld(t, w, servers, func(o *Options) { o.Grace = grace }, func(b *bench) {
			b.within(time.Second, "a")
			s := w.first("a")
			s.setStreams(1)
			start := time.Now()
			if during != nil {
				go during(s)
			}
			b.stop()
			took = time.Since(start)
			testutil.Holds(t, s.drained || grace < 0, "the server was not told")
			testutil.Holds(t, tunnel.Closed(s.Done()), "the session was left open")
		})
		return took
	}
	for name, c := range map[string]struct {
		grace       time.Duration
		during      func(*fakeSession)
		least, most time.Duration
	}{
		"idle": {0, func(s *fakeSession) { time.Sleep(5 * time.Second); s.setStreams(0) }, 5 * time.Second, 7 * time.Second},
		"a dial that crossed the DRAIN on its way": {0, func(s *fakeSession) {
			s.setStreams(0)
			time.Sleep(drainQuiet / 2)
			s.setStreams(1)
			time.Sleep(5 * time.Second)
			s.setStreams(0)
		}, 6 * time.Second, DefaultGrace},
		"grace": {10 * time.Second, nil, 9 * time.Second, 11 * time.Second},
		"a server that goes once it was told": {
			0, func(s *fakeSession) { time.Sleep(drainQuiet / 2); s.end(nil) }, 0, 2 * time.Second},
		"no grace": {-1, nil, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Between(t, run(t, c.grace, c.during), c.least, c.most, "it took")
		})
	}
}

// A cap that means never is one, and no panic for times that are longer than any.
func TestTheLongestSyncInterval(t *testing.T) {
	s := &set{opts: Options{SyncInterval: time.Second, SyncIntervalCap: math.MaxInt64}}
	for _, forever := range []bool{true, false} {
		s.opts.SyncForever = forever
		for _, silent := range []bool{true, false} {
			every := s.probeEvery(silent)
			testutil.Holds(t, every >= longestProbe && peers.Jitter(every) >= longestProbe/2, "looks for servers every %v", every)
		}
	}
}

// An agent that keeps to two of four servers is connected to another when one goes, and
// back once that has come back for a while. The server that it leaves is asked to use
// other agents, and open connections end by themselves.
func TestSomeServers(t *testing.T) {
	w := newWorld()
	all := []string{"a", "b", "c", "d"}
	servers := direct(w, all...)
	inWorld(t, w, servers, func(o *Options) { o.MaxServers = 2 }, func(b *bench) {
		time.Sleep(time.Minute)
		preferred := b.connected()
		testutil.Requires(t, len(preferred) == 2, "connected to %v", preferred)
		w.stop(preferred[0])
		time.Sleep(10 * time.Second)
		now := b.connected()
		other := slices.DeleteFunc(slices.Clone(now), func(id string) bool { return slices.Contains(preferred, id) })
		testutil.Requires(t, len(now) == 2 && len(other) == 1, "connected to %v, before to %v", now, preferred)
		left := w.first(other[0])
		left.setStreams(1)
		w.start(preferred[0])
		b.within(20*time.Second, append(slices.Clone(preferred), other...)...)
		time.Sleep(time.Minute)
		synctest.Wait()
		left.mu.Lock()
		told, cut := left.drained, left.over
		left.mu.Unlock()
		testutil.Holds(t, told && !cut, "told to dial by others: %v, cut: %v", told, cut)
		left.setStreams(0)
		b.within(2*drainQuiet, preferred...)
	})
}

// attemptsIn counts the attempts of a while, in fake time.
func attemptsIn(w *world, d time.Duration) int {
	start := time.Now()
	time.Sleep(d)
	return w.attemptsSince(start)
}

// A server may tell any count: the search for servers that are not there is
// short, and slows down to some attempts a minute, behind one address or many.
func TestSearchBoundsAnyCount(t *testing.T) {
	for _, count := range []int{5, 1000, 2_000_000_000} {
		for _, addresses := range []int{1, 8} {
			t.Run(fmt.Sprint(count, " at ", addresses), func(t *testing.T) {
				w := newWorld()
				var servers []string
				for i := range addresses {
					servers = append(servers, fmt.Sprintf("10.0.0.%d:8091", i+1))
					w.balance(servers[i], "a")
				}
				w.start("a")
				w.setCount(count)
				inWorld(t, w, servers, nil, func(b *bench) {
					begin := time.Now()
					b.within(time.Second, "a")
					testutil.AtMost(t, attemptsIn(w, time.Minute), peers.SearchBurst+60, "attempts in the first minute")
					time.Sleep(30 * time.Minute)
					testutil.AtMost(t, attemptsIn(w, 10*time.Minute), 100*addresses,
						"attempts in ten minutes after half an hour in vain")
					// One stretch alone may also use an earlier allowance.
					seconds := int(time.Since(begin) / time.Second)
					testutil.AtMost(t, w.attemptsSince(begin), peers.SearchBurst+seconds+addresses,
						"attempts in %d seconds", seconds)
				})
			})
		}
	}
}

// Neither a count that goes up and down nor servers that come with a new id each
// time, and leave, make the agent search at more than its pace.
func TestSearchRateIsBounded(t *testing.T) {
	t.Run("count", func(t *testing.T) {
		w := newWorld()
		w.protocol = protocolLink
		inWorld(t, w, balanced(w, "a"), nil, func(b *bench) {
			b.within(time.Second, "a")
			start := time.Now()
			for i := range 600 {
				w.setCount(1 + 1000*(i%2))
				time.Sleep(time.Second)
			}
			testutil.AtMost(t, w.attemptsSince(start), peers.SearchBurst+600, "attempts in ten minutes")
		})
	})
	t.Run("ids", func(t *testing.T) {
		w := newWorld()
		var ids []string
		for i := range 4 * maxServers {
			ids = append(ids, fmt.Sprint("s", i))
		}
		servers := balanced(w, ids...)
		inWorld(t, w, servers, nil, func(b *bench) {
			start := time.Now()
			for range 10 {
				time.Sleep(time.Minute)
				w.stop(ids...)
				w.start(ids...)
			}
			testutil.AtMost(t, w.attemptsSince(start), peers.SearchBurst+600+60, "attempts in ten minutes")
			time.Sleep(time.Hour)
			testutil.AtMost(t, len(b.agent.Servers()), maxServers+maxSearch, "servers are connected")
		})
	})
}
