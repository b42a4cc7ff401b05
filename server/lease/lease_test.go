package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// store is the leases of one namespace, in memory. It keeps resource versions and can
// be made to fail.
type store struct {
	t testing.TB

	mu      sync.Mutex
	leases  map[string]*kubeapi.Lease
	version int
	verbs   []string
	fails   error         // of every call, while not nil
	hangs   bool          // updates do
	slow    time.Duration // what a deletion takes
	forbids error         // every deletion, while not nil
	renewed []time.Time   // when the lease of me was written
}

func newStore(t testing.TB) *store {
	return &store{t: t, leases: make(map[string]*kubeapi.Lease)}
}

// call begins a call, and returns the lease and what is wrong with its name and version.
func (s *store) call(verb, name, version string) (*kubeapi.Lease, error) {
	s.verbs = append(s.verbs, verb)
	l := s.leases[name]
	switch {
	case s.fails != nil:
		return nil, s.fails
	case l == nil:
		return nil, &kubeapi.Error{Code: 404, Reason: kubeapi.NotFound}
	case version != "" && version != l.ResourceVersion:
		return nil, &kubeapi.Error{Code: 409, Reason: kubeapi.Conflict}
	}
	return clone(l), nil
}

func (s *store) Get(_ context.Context, name string) (*kubeapi.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.call("get", name, "")
}

func (s *store) List(_ context.Context, opts kubeapi.ListOptions) (*kubeapi.List[*kubeapi.Lease], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	testutil.Equal(s.t, opts.Labels, "k8s-app=konnectivity-server", "listed by")
	list := new(kubeapi.List[*kubeapi.Lease])
	for _, l := range s.leases {
		list.Items = append(list.Items, l)
	}
	return list, s.fails
}

func (s *store) Create(_ context.Context, l *kubeapi.Lease) (*kubeapi.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.call("create", l.Name, ""); kubeapi.ReasonOf(err) != kubeapi.NotFound {
		return nil, cmp.Or(err, error(&kubeapi.Error{Code: 409, Reason: kubeapi.AlreadyExists}))
	}
	return s.put(l), nil
}

func (s *store) Update(ctx context.Context, l *kubeapi.Lease, _ ...string) (*kubeapi.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	if _, err := s.call("update", l.Name, l.ResourceVersion); err != nil {
		return nil, err
	}
	return s.put(l), nil
}

func (s *store) Delete(_ context.Context, name, version string) error {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.call("delete", name, version)
	if err = cmp.Or(s.forbids, err); err == nil {
		delete(s.leases, name)
	}
	return err
}

func (s *store) put(l *kubeapi.Lease) *kubeapi.Lease {
	if s.version++; l.Name == NamePrefix+"me" {
		s.renewed = append(s.renewed, time.Now())
	}
	l = clone(l)
	l.ResourceVersion = strconv.Itoa(s.version)
	s.leases[l.Name] = l
	return clone(l)
}

// clone has a Controller write to no map of the store.
func clone(l *kubeapi.Lease) *kubeapi.Lease {
	c := *l
	c.Labels, c.Annotations = maps.Clone(l.Labels), maps.Clone(l.Annotations)
	return &c
}

func (s *store) lease(name string) *kubeapi.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[name]
}

// add stores a lease of another server, renewed that long ago.
func (s *store) add(id string, ago time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(leaseOf(id, ago))
}

// become has calls fail, or updates hang.
func (s *store) become(hangs bool, fails error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs, s.fails = hangs, fails
}

// run runs a controller in a bubble until do returns.
func run(t *testing.T, c *Controller, do func()) {
	stop := testutil.Start(t, c.Run)
	synctest.Wait()
	do()
	stop()
}

func leaseOf(id string, ago time.Duration) *kubeapi.Lease {
	at, seconds := kubeapi.MicroTime{Time: time.Now().Add(-ago)}, int32(30)
	lease := &kubeapi.Lease{Spec: kubeapi.LeaseSpec{HolderIdentity: &id, LeaseDurationSeconds: &seconds, RenewTime: &at}}
	lease.Name, lease.Labels = NamePrefix+id, map[string]string{"k8s-app": "konnectivity-server"}
	return lease
}

type counts struct {
	mu                   sync.Mutex
	lists, deletes, culs map[string]int
}

func (c *counts) LeaseListed(code int, reason string, _ time.Duration) { c.inc(&c.lists, code, reason) }
func (c *counts) LeaseDeleted(code int, reason string, _ time.Duration) {
	c.inc(&c.deletes, code, reason)
}
func (c *counts) LeaseCulled() { c.inc(&c.culs, 0, "") }
func (c *counts) inc(m *map[string]int, code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = make(map[string]int)
	}
	(*m)[fmt.Sprintf("%d%s", code, reason)]++
}

func controller(leases Leases, m Metrics, log logrus.FieldLogger) *Controller {
	return New(Config{Leases: leases, ServerID: "me", Labels: map[string]string{"k8s-app": "konnectivity-server"}, Metrics: m, Changed: func(int) {}, Log: log})
}

func TestRunCreatesAndDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStore(t)
		a.add("other", time.Second)
		a.add("dead", time.Hour)
		var changed []int
		c := controller(a, new(counts), logging.Silent())
		c.cfg.Changed = func(n int) { changed = append(changed, n) }
		run(t, c, func() {
			testutil.Requires(t, c.Count() == 2, "counted %d servers, want 2", c.Count())
			l := a.lease("konnectivity-proxy-server-me")
			if l == nil || *l.Spec.HolderIdentity != "me" || *l.Spec.LeaseDurationSeconds != 30 || l.Spec.RenewTime == nil ||
				l.Spec.AcquireTime == nil || l.Labels["k8s-app"] != "konnectivity-server" {
				t.Errorf("own lease: %+v", l)
			}
			testutil.Holds(t, a.lease(NamePrefix+"dead") != nil, "deleted at first sight, though clocks may differ")
		})
		testutil.Holds(t, a.lease("konnectivity-proxy-server-me") == nil, "the lease outlived the server")
		testutil.Holds(t, a.lease(NamePrefix+"other") != nil, "another's live lease was deleted")
		testutil.Holds(t, len(changed) == 1 && changed[0] == 2, "told of %v", changed)
	})
}

func TestRenew(t *testing.T) {
	a := newStore(t)
	ctx := t.Context()
	c := controller(a, new(counts), logging.Silent())
	for range 3 {
		testutil.NoError(t, c.renew(ctx))
	}
	testutil.Equal(t, strings.Join(a.verbs, " "), "get create update update", "verbs")
	acquired := a.lease(c.name).Spec.AcquireTime

	// Somebody else wrote to it: fails once, then works again.
	a.mu.Lock()
	a.put(a.leases[c.name])
	a.mu.Unlock()
	if err := c.renew(ctx); kubeapi.ReasonOf(err) != kubeapi.Conflict || !strings.Contains(err.Error(), "--server-id") {
		t.Errorf("want a conflict, got %v", err)
	}
	testutil.NoError(t, c.renew(ctx))
	testutil.Holds(t, a.lease(c.name).Spec.AcquireTime.Equal(acquired.Time), "a renewal is no new acquisition")

	// It was deleted under us.
	a.mu.Lock()
	delete(a.leases, c.name)
	a.mu.Unlock()
	testutil.Equal(t, kubeapi.ReasonOf(c.renew(ctx)), kubeapi.NotFound, "the reason")
	err := c.renew(ctx)
	testutil.Holds(t, err == nil && a.lease(c.name) != nil, "not created again: %v", err)
}

func TestCollect(t *testing.T) { synctest.Test(t, testCollect) }

func testCollect(t *testing.T) {
	a, m := newStore(t), &counts{}
	c := controller(a, m, logging.Silent())
	a.add("live", time.Second)
	a.add("dead", time.Hour)
	a.add("skewed", time.Hour) // alive, with a clock an hour behind ours
	now := time.Now()
	look := func() int {
		t.Helper()
		testutil.NoError(t, c.collect(t.Context(), now.Add(time.Hour)))
		return c.Count()
	}
	testutil.Equal(t, look(), 2, "live at first sight, with our own")
	a.add("skewed", time.Hour) // renews
	testutil.Equal(t, look(), 3, "live once the skewed one renewed")
	time.Sleep(kubeapi.LeaseDuration + time.Second) // all but one renew
	a.add("live", 0)
	a.add("skewed", time.Hour)
	if n := look(); n != 3 || a.lease(NamePrefix+"dead") != nil || a.lease(NamePrefix+"skewed") == nil || a.lease(NamePrefix+"live") == nil {
		t.Errorf("%d live; left: %v", n, a.leases)
	}
	testutil.Holds(t, m.culs["0"] == 1 && m.deletes["200"] == 1 && m.lists["200"] == 3,
		"metrics: %v %v %v", m.culs, m.deletes, m.lists)
	a.become(false, &kubeapi.Error{Code: 503, Reason: "ServiceUnavailable", Message: "down"})
	err := c.collect(t.Context(), now.Add(time.Hour))
	testutil.Holds(t, err != nil && c.Count() == 3, "an outage must leave the count: %d, %v", c.Count(), err)
	testutil.Equal(t, m.lists["503ServiceUnavailable"], 1, "metrics: %v", m.lists)
}

// Each server says in its lease where others reach it, and finds those that live and say
// it too. What is no address is passed over, and a server that says it no more is not
// found.
func TestPeersAreFoundByTheirLeases(t *testing.T) {
	a := newStore(t)
	c := controller(a, new(counts), logging.Silent())
	c.cfg.Peer = netip.MustParseAddrPort("192.0.2.1:8097")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	testutil.Fails(t, testutil.Err(c.Peers(gone)), "peers are known before leases were listed")
	for id, says := range map[string]string{"a": "192.0.2.2:8097", "b": "[2001:db8::3]:8097", "old": "", "name": "example.com:8097"} {
		l := leaseOf(id, time.Second)
		l.Annotations = map[string]string{PeerAnnotation: says}
		a.put(l)
	}
	patient := leaseOf("patient", time.Hour)
	patient.Annotations, patient.Spec.LeaseDurationSeconds = map[string]string{PeerAnnotation: "192.0.2.3:8097"}, new(int32(7200))
	a.put(patient)
	hasty := leaseOf("hasty", 2*time.Second)
	hasty.Annotations, hasty.Spec.LeaseDurationSeconds = map[string]string{PeerAnnotation: "192.0.2.5:8097"}, new(int32(1))
	a.put(hasty)
	dead := leaseOf("dead", time.Hour)
	dead.Annotations = map[string]string{PeerAnnotation: "192.0.2.4:8097"}
	a.put(dead)
	testutil.NoError(t, c.renew(t.Context()))
	testutil.NoError(t, c.collect(t.Context(), time.Now()))
	found, err := c.Peers(t.Context())
	slices.SortFunc(found, netip.AddrPort.Compare)
	want := "[192.0.2.2:8097 192.0.2.3:8097 [2001:db8::3]:8097]"
	testutil.Holds(t, err == nil && fmt.Sprint(found) == want, "found %v, %v; want %s", found, err, want)
	testutil.Equal(t, a.lease(c.name).Annotations[PeerAnnotation], "192.0.2.1:8097", "what it says")
	c.cfg.Peer = netip.AddrPort{}
	testutil.NoError(t, c.renew(t.Context()))
	at, says := a.lease(c.name).Annotations[PeerAnnotation]
	testutil.Holds(t, !says, "it still says %q", at)
}

// A server that died with a clock ahead of ours, or before ours was set back, is not counted for
// as long as its lease says. The lease is left alone until then.
func TestALeaseFromTheFutureIsLiveWhileItIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStore(t)
		c := controller(a, new(counts), logging.Silent())
		testutil.NoError(t, c.renew(t.Context()))
		ahead := func() { a.add("ahead", -time.Hour) }
		ahead()
		for _, step := range []struct {
			do   func()
			live int
		}{{func() {}, 2}, {ahead, 2}, {func() {}, 1}, {ahead, 2}} {
			step.do()
			testutil.NoError(t, c.collect(t.Context(), time.Now().Add(time.Hour)))
			n := c.Count()
			testutil.Holds(t, n == step.live && a.lease(NamePrefix+"ahead") != nil, "%d live, want %d with our own", n, step.live)
			time.Sleep(kubeapi.LeaseDuration - time.Second)
			testutil.NoError(t, c.collect(t.Context(), time.Now().Add(time.Hour)))
			testutil.Equal(t, c.Count(), step.live, "live a moment before the end")
			time.Sleep(time.Second)
		}
	})
}

func TestDeleteYieldsToARenewal(t *testing.T) {
	a, m := newStore(t), &counts{}
	c := controller(a, m, logging.Silent())
	a.add("x", time.Hour)
	old := *a.lease(NamePrefix + "x")
	a.add("x", 0)
	testutil.NoError(t, c.delete(t.Context(), &old))
	testutil.Holds(t, a.lease(NamePrefix+"x") != nil && m.deletes["409Conflict"] == 1 && len(m.culs) == 0,
		"metrics %v %v", m.deletes, m.culs)
}

func TestOutageIsRetriedBeforeTheLeaseRunsOutAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStore(t)
		log, hook := logtest.NewNullLogger()
		log.SetLevel(logrus.InfoLevel)
		run(t, controller(a, new(counts), log), func() {
			for _, step := range []struct {
				lasts time.Duration
				hangs bool
				fails error
			}{
				{lasts: 20 * time.Second}, {lasts: 20 * time.Second, fails: errors.New("connection refused")}, {lasts: 20 * time.Second},
				{lasts: time.Minute, hangs: true}, {lasts: 10 * time.Second},
			} {
				a.become(step.hangs, step.fails)
				time.Sleep(step.lasts)
				synctest.Wait()
			}
		})
		testutil.Holds(t, len(a.renewed) >= 4 && a.renewed[2].Sub(a.renewed[1]) <= kubeapi.LeaseDuration,
			"renewed at %v: the lease ran out in an outage of 20 s", a.renewed)
		testutil.AtMost(t, time.Since(a.renewed[len(a.renewed)-1]), 10*time.Second,
			"not renewed after calls that hung: %v", a.renewed)
		testutil.Holds(t, a.lease(NamePrefix+"me") == nil, "not deleted")
		testutil.AtMost(t, len(hook.AllEntries()), 8, "log lines for two outages")
	})
}

// A server that may not delete leases says so, and says all the same when it can list them no
// more.
func TestWhatFailsIsSaidByItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStore(t)
		a.forbids = &kubeapi.Error{Code: 403, Reason: "Forbidden"}
		a.add("gone", time.Hour)
		log, hook := logtest.NewNullLogger()
		var said [2][]string
		run(t, controller(a, new(counts), log), func() {
			for i, fails := range []error{nil, errors.New("connection refused")} {
				hook.Reset()
				a.become(false, fails)
				time.Sleep(time.Minute)
				synctest.Wait()
				for _, e := range hook.AllEntries() {
					said[i] = append(said[i], e.Message)
				}
			}
		})
		testutil.Holds(t, len(said[0]) == 1 && strings.HasPrefix(said[0][0], "cannot delete "),
			"a deletion fails: %q", said[0])
		if !slices.ContainsFunc(said[1], func(line string) bool { return strings.HasPrefix(line, "cannot list ") }) {
			t.Errorf("the API is away: %q", said[1])
		}
	})
}

// A server that has many leases to delete, each of which takes a second, renews its own
// all the same.
func TestManyExpiredLeasesHoldUpNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStore(t)
		a.slow = time.Second
		for i := range 100 {
			a.add(fmt.Sprint("gone-", i), time.Hour)
		}
		run(t, controller(a, new(counts), logging.Silent()), func() { time.Sleep(5 * time.Minute) })
		for i := 1; i < len(a.renewed); i++ {
			gap := a.renewed[i].Sub(a.renewed[i-1])
			testutil.Holds(t, gap < renewInterval+callTimeout, "not renewed for %v", gap)
		}
		testutil.Between(t, len(a.renewed), 10, int(5*time.Minute/renewInterval)+1, "renewals")
		testutil.Equal(t, len(a.leases), 0, "leases that are left")
	})
}

// A server whose own lease is not there, as it cannot be renewed just now, or somebody
// has deleted it, is one of the servers nevertheless.
func TestAServerCountsItselfWithoutItsLease(t *testing.T) {
	for others, want := range map[int]int{2: 3, 0: 0} { // without any, nothing is known
		a := newStore(t)
		for i := range others {
			a.add(fmt.Sprint("other-", i), time.Second)
		}
		c := controller(a, new(counts), logging.Silent())
		if err := c.collect(t.Context(), time.Now()); err != nil || c.Count() != want {
			t.Errorf("%d servers beside %d others, want %d: %v", c.Count(), others, want, err)
		}
	}
}
