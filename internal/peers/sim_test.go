package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// conn is a session with a server of a world.
type conn struct {
	id, server string
	count      int // as its server told when it began; 0: it tells what there is
	streams    int
	reroutes   int  // as the set has told
	agents     bool // its server has some, for a set that asks
	second     bool // its address was the only one of several servers
	w          *world
	done       chan struct{}
	drains     tunnel.Event
	end        func()
}

func (c *conn) Key() string { return c.id }

func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) Drains() *tunnel.Event { return &c.drains }

func (c *conn) Close() error { c.end(); return nil }

func (c *conn) Streams() int { return c.streams }

func (c *conn) Rerouted(way func(to netip.Addr) (from netip.Addr)) {
	if to := netip.MustParseAddr("127.0.0.1"); way(to) == to {
		c.reroutes++
	}
}

func (c *conn) ServerCount() int {
	if c.count > 0 {
		return c.count
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.count()
}

// world is servers behind addresses, any of which may be up or not.
type world struct {
	mu     sync.Mutex
	random *rand.Rand
	behind map[string][]string // address -> servers
	up     map[string]bool
	hangs  string               // an address that swallows attempts
	hidden map[string]bool      // addresses that the names do not have now
	alone  map[string]time.Time // when an address was the only one of several servers last
	conns  map[*conn]bool
	dials  int
	// links has sessions tell ids of their own, and not their server's, and a
	// count that stays; server 1 knows of itself only.
	links bool

	closing time.Duration // what it takes
	retires bool          // a set ends sessions that were replaced
}

func (w *world) count() (n int) {
	for _, up := range w.up {
		if up {
			n++
		}
	}
	return n
}

func (w *world) connect(ctx context.Context, address string) (*conn, error) {
	time.Sleep(10 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials++
	if w.hangs == address {
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
	}
	var up []string
	for _, server := range w.behind[address] {
		if w.up[server] {
			up = append(up, server)
		}
	}
	if len(up) == 0 {
		return nil, errors.New("refused")
	}
	server := up[w.random.IntN(len(up))]
	c := &conn{id: server, server: server, w: w, done: make(chan struct{})}
	if w.links {
		c.id, c.count = fmt.Sprint(server, "/", w.dials), w.count()
		if server == "1" {
			c.count = 1
		}
	}
	w.pair()
	c.second = time.Since(w.alone[address]) < 2*time.Second // names are looked up once a second
	c.end = sync.OnceFunc(func() {
		time.Sleep(w.closing)
		w.mu.Lock()
		delete(w.conns, c)
		w.mu.Unlock()
		close(c.done)
	})
	w.conns[c] = true
	return c, nil
}

func (w *world) resolve(context.Context) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listed(), nil
}

// listed are the addresses that the names have now, sorted.
func (w *world) listed() (all []string) {
	for address := range w.behind {
		if !w.hidden[address] {
			all = append(all, address)
		}
	}
	slices.Sort(all)
	return all
}

// happens has one thing happen: a server goes, with or without a word, or comes,
// or an address does.
func (w *world) happens() {
	w.mu.Lock()
	w.pair()
	if w.random.IntN(3) == 0 {
		w.hideOrShow()
	}
	servers := make([]string, 0, len(w.up))
	for s := range w.up {
		servers = append(servers, s)
	}
	slices.Sort(servers)
	server := servers[w.random.IntN(len(servers))]
	w.up[server] = !w.up[server]
	politely := w.random.IntN(2) == 0
	var gone []*conn
	for c := range w.conns {
		if c.server == server && !w.up[server] {
			gone = append(gone, c)
		}
	}
	w.mu.Unlock()
	for _, c := range gone {
		if politely {
			c.drains.Happen()
			time.AfterFunc(3*time.Second, c.end)
		} else {
			c.end()
		}
	}
}

// pair notes an address that may get two sessions now.
func (w *world) pair() {
	if listed := w.listed(); len(listed) == 1 {
		w.alone[listed[0]] = time.Now()
	}
}

// hideOrShow has an address leave the names, unless it is the only one, or come
// back.
func (w *world) hideOrShow() {
	all := slices.Sorted(maps.Keys(w.behind))
	address := all[w.random.IntN(len(all))]
	if w.hidden[address] || len(w.listed()) > 1 {
		w.hidden[address] = !w.hidden[address]
	}
}

func (w *world) pause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.random.Int64N(int64(8 * time.Second)))
}

// live are the servers of sessions that mean to stay, sorted.
func (w *world) live(s *Set[string, *conn]) (servers []string) {
	for _, m := range s.Members() {
		if !tunnel.Closed(m.Session.Done()) && !m.Session.Drains().Happened() {
			servers = append(servers, m.Session.server)
		}
	}
	slices.Sort(servers)
	return servers
}

func (w *world) set(policy Policy) *Set[string, *conn] {
	w.conns, w.hidden, w.alone = map[*conn]bool{}, map[string]bool{}, map[string]time.Time{}
	var retire func(context.Context, *conn)
	if w.retires {
		retire = ends
	}
	return New(Config[string, *conn]{
		Retire: retire,
		Policy: policy, ConnectTimeout: 5 * time.Second,
		Key: func(a string) string { return a }, Resolve: w.resolve,
		ResolveEvery: func(bool, error) time.Duration { return time.Second },
		Connect:      w.connect,
		Rush: func(ctx context.Context) (string, *conn, error) {
			c, err := w.connect(ctx, "a")
			return "a", c, err
		},
		Events: Events[string, *conn]{Duplicate: func(_ string, c *conn) { c.end() }},
	})
}

// running runs a set in fake time for as long as f takes.
func running(t *testing.T, w *world, policy Policy, f func(t *testing.T, s *Set[string, *conn])) {
	synctest.Test(t, func(t *testing.T) {
		s := w.set(policy)
		stop := testutil.Start(t, s.Run)
		defer func() { // also when f gives up
			stop()
			s.Close()
			w.mu.Lock()
			defer w.mu.Unlock()
			testutil.Equal(t, len(w.conns), 0, "sessions are left open")
		}()
		f(t, s)
	})
}

// judge returns the faults of a set after a long quiet time.
func (w *world) judge(policy string, s *Set[string, *conn]) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if policy == "all" {
		return w.judgeAll(s)
	}
	return w.judgeEach(s)
}

// judgeAll wants every server that can be reached, and those met before at
// addresses that are gone.
func (w *world) judgeAll(s *Set[string, *conn]) (wrong string) {
	got := map[string]bool{}
	for _, m := range s.Members() {
		got[m.Session.server] = true
	}
	for _, address := range w.listed() {
		for _, server := range w.behind[address] {
			if w.up[server] && !got[server] {
				wrong += fmt.Sprintf("no session to server %s at %s; ", server, address)
			}
		}
	}
	return wrong
}

// judgeEach wants one session at each address that there is and that a server is
// behind; two if it is the only one, and one of them was told of other servers.
// A second one that was made then may stay.
func (w *world) judgeEach(s *Set[string, *conn]) (wrong string) {
	listed := w.listed()
	for _, address := range listed {
		if !slices.ContainsFunc(w.behind[address], func(s string) bool { return w.up[s] }) {
			continue
		}
		got, least, most := 0, 1, 1
		for _, m := range s.Members() { // the oldest first
			if m.Address != address {
				continue
			}
			if got++; got == 2 && m.Session.second {
				most = 2
			}
			if len(listed) == 1 && m.Session.count > 1 {
				least, most = 2, 2
			}
		}
		if got < least || got > most {
			wrong += fmt.Sprintf("%d sessions at %s, want %d to %d; ", got, address, least, most)
		}
	}
	return wrong
}

// Whatever servers and names do, the set is right soon after they have calmed
// down, has no server twice meanwhile, and dials none too often.
func TestSimulation(t *testing.T) {
	shapes := map[string]map[string][]string{
		"own":      {"a": {"1"}, "b": {"2"}, "c": {"3"}},
		"balancer": {"a": {"1", "2", "3", "4"}},
		"both":     {"a": {"1", "2"}, "b": {"2", "3"}},
	}
	for policy, values := range policies {
		for shape, behind := range shapes {
			for seed := range uint64(10) {
				t.Run(fmt.Sprint(policy, " ", shape, " ", seed), func(t *testing.T) {
					w := &world{random: rand.New(rand.NewPCG(seed, 1)), behind: behind, up: map[string]bool{}, links: policy == "each"}
					for _, servers := range behind {
						for _, server := range servers {
							w.up[server] = true
						}
					}
					running(t, w, values, func(t *testing.T, s *Set[string, *conn]) { w.simulate(t, policy, s) })
				})
			}
		}
	}
}

func (w *world) simulate(t *testing.T, policy string, s *Set[string, *conn]) {
	s.Keep()
	for range 3 {
		for range 30 {
			time.Sleep(w.pause())
			w.happens()
			if got := w.live(s); policy == "all" && len(slices.Compact(slices.Clone(got))) < len(got) {
				t.Fatalf("a server is connected twice: %v", got)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		wrong := w.judge(policy, s)
		testutil.Requires(t, wrong == "", "%v", wrong)
		before := w.dialed()
		time.Sleep(time.Minute)
		testutil.AtMost(t, w.dialed()-before, 60*len(w.behind), "attempts in a minute in which nothing happened")
	}
}

// Retry dials addresses that failed at once, and then as quickly as at first; sessions
// go on.
func TestRetry(t *testing.T) {
	for name, policy := range policies {
		policy.ProbeEvery = nil // so that b alone is dialed
		w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}, "b": {"2"}}, up: map[string]bool{"1": true}, links: name == "each"}
		running(t, w, policy, func(t *testing.T, s *Set[string, *conn]) {
			dials := func() int {
				synctest.Wait()
				return w.dialed()
			}
			s.Keep()
			for before := -1; before != dials(); { // until the pause is longer than this
				before = dials()
				time.Sleep(policy.Limit / 3)
			}
			before := dials()
			s.Retry()
			time.Sleep(20 * time.Millisecond) // connect takes 10
			testutil.Equal(t, dials()-before, 1, "%s: attempts at once, at b", name)
			time.Sleep(policy.Base)
			testutil.Equal(t, dials()-before, 2, "%s: attempts soon", name)
			w.mu.Lock()
			w.up["2"] = true
			w.mu.Unlock()
			s.Retry()
			time.Sleep(20 * time.Millisecond)
			testutil.EqualSlices(t, w.live(s), []string{"1", "2"}, "%s: connected to", name)
		})
	}
}

// Once routes have changed, sessions that can tell what it means for them are told, and what
// failed, or has no answer yet, is tried again at once if another way leads there now, as it is known
// when it was tried first, or from the last change on.
func TestRerouted(t *testing.T) {
	const there, away = "127.0.0.1:1", "127.0.0.1:2"
	policy := all
	policy.ProbeEvery, policy.Base, policy.Limit = nil, time.Hour, time.Hour
	for _, hangs := range []string{"", away} {
		w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{there: {"1"}, away: {"2"}}, up: map[string]bool{"1": true}, hangs: hangs}
		running(t, w, policy, func(t *testing.T, s *Set[string, *conn]) {
			s.Keep()
			time.Sleep(time.Second)
			other := func() { s.targets[away].way = netip.MustParseAddr("127.0.0.9") }
			for i, was := range []func(){func() {}, other, func() {}} {
				before := w.dialed()
				s.mail.post(was)
				s.Rerouted()
				time.Sleep(time.Second)
				testutil.Equal(t, w.dialed()-before, i%2, "attempts at once behind change %d, where %q hangs", i, hangs)
			}
			synctest.Wait()
			testutil.Equal(t, s.Members()[0].Session.reroutes, 3, "times that a session was told")
		})
	}
}

// All callers of Now share one Rush, and its outcome.
func TestNowIsShared(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
	running(t, w, all, func(t *testing.T, s *Set[string, *conn]) {
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				c, err := s.Now(t.Context())
				testutil.Holds(t, err == nil && c.id == "1", "%v, %v", c, err)
			})
		}
		asking.Wait()
		c, err := s.Now(t.Context())
		testutil.Holds(t, err == nil && c.id == "1" && w.dials == 1, "%v, %v, %d dials", c, err, w.dials)
	})
}

// Callers that come back without a pause, while nothing can be reached, do not cost the
// servers an attempt each.
func TestNowIsNoStorm(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{}}
	running(t, w, each, func(t *testing.T, s *Set[string, *conn]) {
		var asking sync.WaitGroup
		for range 8 {
			asking.Go(func() {
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
					testutil.Fails(t, testutil.Err(s.Now(t.Context())), "there is a session")
				}
			})
		}
		asking.Wait()
		most := 1 + int(10*time.Second/rushPause)
		testutil.Holds(t, w.dials <= most && w.dials >= most/2, "%d attempts, want up to %d", w.dials, most)
	})
}

// A session that comes during the pause before an attempt makes the attempt needless.
func TestNowNeedsNoAttemptOnceThereIsASession(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{}, links: true}
	running(t, w, each, func(t *testing.T, s *Set[string, *conn]) {
		_, err := s.Now(t.Context())
		testutil.Requires(t, err != nil, "there is a session")
		began := time.Now()
		time.AfterFunc(rushPause/4, func() {
			w.mu.Lock()
			w.up["1"] = true
			w.mu.Unlock()
			c := testutil.Must(w.connect(t.Context(), "a"))(t)
			s.Offer("a", c)
		})
		testutil.Must(s.Now(t.Context()))(t)
		took := time.Since(began)
		testutil.Holds(t, took < rushPause, "it took %v", took)
		time.Sleep(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		testutil.Equal(t, w.dials, 2, "attempts were made")
	})
}

// A caller of Now during an attempt of the plan gets the first session of the two; the
// other one is closed, where there is to be one at each address.
func TestNowBesideAnAttempt(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}, links: true}
	running(t, w, each, func(t *testing.T, s *Set[string, *conn]) {
		s.Keep()
		time.Sleep(5 * time.Millisecond) // connect takes 10
		testutil.Must(s.Now(t.Context()))(t)
		time.Sleep(time.Second)
		got := w.live(s)
		w.mu.Lock()
		defer w.mu.Unlock()
		testutil.Holds(t, w.dials == 2 && len(got) == 1, "%d sessions of %d attempts: %v", len(got), w.dials, got)
		testutil.Equal(t, len(w.conns), 1, "sessions are open")
	})
}

// A session that was one too many is kept if the other one ends at that moment, and
// callers of Now get it.
func TestNowBesideASessionThatEnds(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}, links: true}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(each)
		defer s.Close()
		s.ctx, s.plan = t.Context(), NewPlan(each, time.Now()) // Run is not needed
		s.resolved([]string{"a"}, nil)
		dial := func() *conn {
			return testutil.Must(w.connect(t.Context(), "a"))(t)
		}
		first, second := dial(), dial()
		s.join("a", first)
		first.end() // after the loop's last look
		reply := make(chan answer[*conn], 1)
		s.waiting = append(s.waiting, reply)
		s.joinWanted("a", second)
		select {
		case got := <-reply:
			testutil.Holds(t, got.session == second && !tunnel.Closed(second.done), "%+v", got)
		default:
			t.Error("nobody answered")
		}
	})
}

// Now returns why there is no session, ends with its context, and does not outlast the
// set.
func TestNowFails(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{}, up: map[string]bool{}}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(each)
		stop := testutil.Start(t, s.Run)
		_, err := s.Now(t.Context())
		testutil.Holds(t, err != nil && err.Error() == "refused", "with nobody there: %v", err)
		soon, giveUp := context.WithTimeout(t.Context(), time.Millisecond)
		defer giveUp()
		testutil.ErrorIs(t, testutil.Err(s.Now(soon)), context.DeadlineExceeded, "one who gave up")
		var asking sync.WaitGroup
		asking.Go(func() {
			time.Sleep(5 * time.Millisecond)
			_, err := s.Now(t.Context())
			testutil.Holds(t, errors.Is(err, errClosed) || err.Error() == "refused", "while it ends: %v", err)
		})
		time.Sleep(7 * time.Millisecond)
		stop()
		asking.Wait()
		testutil.ErrorIs(t, testutil.Err(s.Now(t.Context())), errClosed, "after the end")
		w.up["1"], w.behind["a"] = true, []string{"1"}
		c, _ := w.connect(t.Context(), "a")
		s.Offer("a", c)
		testutil.Holds(t, tunnel.Closed(c.Done()), "a session that came too late was left open")
		s.Close()
	})
}

// A session that was made elsewhere joins the set, and callers of Now get it.
func TestOffer(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"b": {"1"}}, up: map[string]bool{"1": true}}
	running(t, w, all, func(t *testing.T, s *Set[string, *conn]) {
		c := testutil.Must(w.connect(t.Context(), "b"))(t)
		var asking sync.WaitGroup
		asking.Go(func() {
			got, err := s.Now(t.Context())
			testutil.Holds(t, got == c, "got %v, %v", got, err)
		})
		synctest.Wait()
		s.Offer("b", c)
		asking.Wait()
		testutil.EqualSlices(t, w.live(s), []string{"1"}, "connected to")
	})
}

// A session that an attempt makes after the end is closed: running checks.
func TestEndDuringAnAttempt(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
	running(t, w, all, func(_ *testing.T, s *Set[string, *conn]) {
		s.Keep()
		time.Sleep(5 * time.Millisecond) // connect takes 10
	})
	testutil.Equal(t, w.dials, 1, "attempts")
}

// A session that an attempt makes as the loop ends lives until Close, as all others do:
// it may be in use already.
func TestAttemptThatOutlivesTheLoop(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(all)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) // connect takes 10
		defer cancel()
		s.Keep()
		s.Run(ctx)
		got := s.Members()
		testutil.Holds(t, len(got) == 1 && !tunnel.Closed(got[0].Session.Done()), "%d sessions, of 1", len(got))
		s.Close()
		testutil.Equal(t, len(w.conns), 0, "sessions are left open")
	})
}

// An Offer during the end is not taken for the end of an attempt.
func TestOfferDuringTheEnd(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(each)
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { s.Run(ctx) })
		c, _ := w.connect(t.Context(), "a")
		s.Keep()
		time.Sleep(5 * time.Millisecond) // connect takes 10, whatever becomes of its context
		cancel()
		synctest.Wait()
		s.Offer("a", c)
		loop.Wait()
		s.Close()
		testutil.Holds(t, w.dials == 2 && len(w.conns) == 0, "%d attempts, %d sessions left open", w.dials, len(w.conns))
	})
}

// A look-up that outlasts the time between two leaves the loop asleep.
func TestSlowLookUp(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{}, up: map[string]bool{}}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(all)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.cfg.Resolve = func(ctx context.Context) ([]string, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		turns := 0
		s.cfg.Events.Changed = func(int, int) {
			if turns++; turns > 20 { // fake time stands still while it spins
				cancel()
			}
		}
		s.Keep()
		s.Run(ctx)
		s.Close()
		testutil.AtMost(t, turns, 20, "turns while nothing happens")
	})
}

// A look-up may take as long as a resolver needs that finds name servers slow, and while no session is
// to stay, six search domains unanswered. Else it is given up sooner.
func TestLookUpsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
		s := w.set(all)
		takes := 6*10*time.Second + 11*time.Second
		var took []time.Duration
		s.cfg.Resolve = func(ctx context.Context) ([]string, error) {
			began := time.Now()
			defer func() { took = append(took, time.Since(began)) }()
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(takes):
				return w.resolve(ctx)
			}
		}
		stop := testutil.Start(t, s.Run)
		s.Keep()
		time.Sleep(4 * maxLookUpTime)
		synctest.Wait()
		testutil.EqualSlices(t, w.live(s), []string{"1"}, "servers connected")
		for _, next := range []struct {
			at, server string
			goes       func(*conn) // the one before
		}{{"b", "2", func(c *conn) { _ = c.Close() }}, {"c", "3", func(c *conn) { c.drains.Happen() }}} {
			w.mu.Lock()
			w.behind, w.up[next.server] = map[string][]string{next.at: {next.server}}, true
			w.mu.Unlock()
			next.goes(s.Members()[0].Session)
			time.Sleep(4 * maxLookUpTime)
			synctest.Wait()
			testutil.Holds(t, slices.Contains(w.live(s), next.server), "server %s, at a new address, is not found", next.server)
		}
		stop()
		s.Close()
		testutil.Requires(t, len(took) > 6, "look-ups: %v", took)
		testutil.EqualSlices(t, took[:4], []time.Duration{lookUpTime, 2 * lookUpTime, 4 * lookUpTime, takes}, "how long the first took")
		testutil.EqualSlices(t, took[4:6], []time.Duration{lookUpTime, lookUpTime}, "how long the next took")
	})
}

// The end of many sessions takes as long as that of one.
func TestSessionsEndTogether(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), up: map[string]bool{"1": true, "2": true, "3": true},
		behind: map[string][]string{"a": {"1"}, "b": {"2"}, "c": {"3"}}, closing: time.Second}
	synctest.Test(t, func(t *testing.T) {
		s := w.set(all)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.Keep()
		s.Run(ctx)
		n := len(s.Members())
		testutil.Requires(t, n == 3, "%d sessions", n)
		start := time.Now()
		s.Close()
		testutil.AtMost(t, time.Since(start), w.closing, "took")
	})
}

// A loop that hears of its end and of an attempt's at once takes in what that made.
func TestEndAtTheMomentOfAnAttempt(t *testing.T) {
	for range 50 {
		w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
		synctest.Test(t, func(t *testing.T) {
			s := w.set(all)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			s.cfg.Events.Changed = func(int, int) {
				if a := s.plan.find("a"); a != nil && a.dialing > 0 {
					time.Sleep(75 * time.Millisecond) // meanwhile, both happen
				}
			}
			time.AfterFunc(5*time.Millisecond, s.mail.wake) // connect takes 10
			s.Keep()
			s.Run(ctx)
			s.Close()
			testutil.Holds(t, w.dials == 1 && len(w.conns) == 0, "%d attempts, %d sessions left open", w.dials, len(w.conns))
		})
	}
}

// A set that rests makes no attempt in the place of a session that it loses, until it is to
// keep connected again.
func TestRest(t *testing.T) {
	w := &world{random: rand.New(rand.NewPCG(1, 1)), behind: map[string][]string{"a": {"1"}}, up: map[string]bool{"1": true}}
	running(t, w, all, func(t *testing.T, s *Set[string, *conn]) {
		s.Keep()
		time.Sleep(5 * time.Millisecond) // connect takes 10
		s.Rest()
		synctest.Wait()
		testutil.Equal(t, s.Busy(), true, "busy, while an attempt is under way")
		time.Sleep(time.Minute)
		testutil.Equal(t, s.Busy(), false, "busy, once that has ended")
		testutil.EqualSlices(t, w.live(s), []string{"1"}, "connected to")
		before := w.dialed()
		_ = s.Members()[0].Session.Close()
		time.Sleep(time.Minute)
		testutil.Equal(t, w.dialed(), before, "attempts")
		s.Keep()
		time.Sleep(time.Minute)
		testutil.EqualSlices(t, w.live(s), []string{"1"}, "connected again to")
	})
}
