package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is a stand-in for the API server's leases of one namespace. It checks
// paths and bodies, keeps resource versions and can be made to fail.
type api struct {
	t   *testing.T
	url string

	mu     sync.Mutex
	leases map[string]*coordinationv1.Lease
	rv     int
	verbs  []string
	down   int // status of every answer while not 0
}

const path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"

func newAPI(t *testing.T) *api {
	a := &api{t: t, leases: make(map[string]*coordinationv1.Lease)}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	a.url = srv.URL
	return a
}

func (a *api) client() kubeapi.Leases {
	c := testutil.Must(kubeapi.NewLeases(&rest.Config{Host: a.url, QPS: -1}, "kube-system"))(a.t)
	return c
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, path), "/")
	if !strings.HasPrefix(r.URL.Path, path) {
		a.t.Errorf("asked for %s", r.URL.Path)
	}
	w.Header().Set("Content-Type", "application/json")
	if a.down != 0 {
		fail(w, a.down, "InternalError")
		return
	}
	a.verbs = append(a.verbs, r.Method)
	body, _ := io.ReadAll(r.Body)
	switch r.Method {
	case http.MethodGet:
		a.get(w, r, name)
	case http.MethodPost, http.MethodPut:
		a.put(w, r.Method, name, body)
	case http.MethodDelete:
		a.delete(w, name, body)
	default:
		a.t.Errorf("verb %s", r.Method)
	}
}

func (a *api) get(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" {
		if s := r.URL.Query().Get("labelSelector"); s != "k8s-app=konnectivity-server" {
			a.t.Errorf("listed by %q", s)
		}
		list := coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"}}
		for _, l := range a.leases {
			list.Items = append(list.Items, *l)
		}
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	if l := a.leases[name]; l != nil {
		_ = json.NewEncoder(w).Encode(l)
		return
	}
	fail(w, 404, metav1.StatusReasonNotFound)
}

func (a *api) put(w http.ResponseWriter, method, name string, body []byte) {
	var l coordinationv1.Lease
	if err := decode(body, &l); err != nil {
		a.t.Error(err)
	}
	old := a.leases[l.Name]
	switch {
	case method == http.MethodPost && old != nil:
		fail(w, 409, metav1.StatusReasonAlreadyExists)
		return
	case method == http.MethodPut && (old == nil || l.Name != name):
		fail(w, 404, metav1.StatusReasonNotFound)
		return
	case method == http.MethodPut && old.ResourceVersion != l.ResourceVersion:
		fail(w, 409, metav1.StatusReasonConflict)
		return
	}
	a.store(&l)
	_ = json.NewEncoder(w).Encode(l)
}

// decode reads what a client sent, protobuf or JSON. client-go's ready-made
// scheme would do, and have the tests compile every API group there is.
func decode(body []byte, into runtime.Object) error {
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return err
	}
	return runtime.DecodeInto(serializer.NewCodecFactory(scheme).UniversalDeserializer(), body, into)
}

func (a *api) store(l *coordinationv1.Lease) {
	a.rv++
	l.Kind, l.APIVersion, l.ResourceVersion = "Lease", "coordination.k8s.io/v1", strconv.Itoa(a.rv)
	a.leases[l.Name] = l
}

func (a *api) delete(w http.ResponseWriter, name string, body []byte) {
	var opts metav1.DeleteOptions
	if err := decode(body, &opts); err != nil {
		a.t.Error(err)
	}
	l := a.leases[name]
	switch p := opts.Preconditions; {
	case l == nil:
		fail(w, 404, metav1.StatusReasonNotFound)
	case p != nil && p.ResourceVersion != nil && *p.ResourceVersion != l.ResourceVersion:
		fail(w, 409, metav1.StatusReasonConflict)
	default:
		delete(a.leases, name)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
}

func (a *api) lease(name string) *coordinationv1.Lease {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[name]
}

// add stores a lease of another server, renewed that long ago.
func (a *api) add(id string, ago time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(leaseOf(id, ago))
}

func leaseOf(id string, ago time.Duration) *coordinationv1.Lease {
	at, seconds := metav1.NewMicroTime(time.Now().Add(-ago)), int32(30)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: NamePrefix + id, Labels: map[string]string{"k8s-app": "konnectivity-server"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &id, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
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
	return New(Config{Leases: leases, ServerID: "me", Labels: map[string]string{"k8s-app": "konnectivity-server"}, Metrics: m, Log: log})
}

func TestRunCreatesAndDeletes(t *testing.T) {
	a := newAPI(t)
	a.add("other", time.Second)
	a.add("dead", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var changed []int
	c := controller(a.client(), nil, logging.Discard())
	c.cfg.Changed = func(n int) { changed = append(changed, n) }
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); c.Count() != 2 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if c.Count() != 2 {
		t.Fatalf("counted %d servers, want 2", c.Count())
	}
	l := a.lease("konnectivity-proxy-server-me")
	if l == nil || *l.Spec.HolderIdentity != "me" || *l.Spec.LeaseDurationSeconds != 30 || l.Spec.RenewTime == nil ||
		l.Spec.AcquireTime == nil || l.Labels["k8s-app"] != "konnectivity-server" {
		t.Errorf("own lease: %+v", l)
	}
	if a.lease(NamePrefix+"dead") == nil {
		t.Error("deleted at first sight, though clocks may differ")
	}
	cancel()
	<-done
	if a.lease("konnectivity-proxy-server-me") != nil {
		t.Error("the lease outlived the server")
	}
	if a.lease(NamePrefix+"other") == nil {
		t.Error("another's live lease was deleted")
	}
	if len(changed) != 1 || changed[0] != 2 {
		t.Errorf("told of %v", changed)
	}
}

func TestRenew(t *testing.T) {
	a := newAPI(t)
	ctx := t.Context()
	c := controller(a.client(), nil, logging.Discard())
	for range 3 {
		testutil.NoError(t, c.renew(ctx))
	}
	if got := strings.Join(a.verbs, " "); got != "GET POST PUT PUT" {
		t.Errorf("verbs %s", got)
	}
	acquired := a.lease(c.name).Spec.AcquireTime

	// Somebody else wrote to it: fails once, then works again.
	a.mu.Lock()
	a.store(a.leases[c.name].DeepCopy())
	a.mu.Unlock()
	if err := c.renew(ctx); !apierrors.IsConflict(err) {
		t.Errorf("want a conflict, got %v", err)
	}
	if err := c.renew(ctx); err != nil {
		t.Error(err)
	}
	if !a.lease(c.name).Spec.AcquireTime.Equal(acquired) {
		t.Error("a renewal is no new acquisition")
	}

	// It was deleted under us.
	a.mu.Lock()
	delete(a.leases, c.name)
	a.mu.Unlock()
	if err := c.renew(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("want not found, got %v", err)
	}
	if err := c.renew(ctx); err != nil || a.lease(c.name) == nil {
		t.Errorf("not created again: %v", err)
	}
}

func TestCollect(t *testing.T) {
	a, m := newAPI(t), &counts{}
	c := controller(a.client(), m, logging.Discard())
	a.add("live", time.Second)
	a.add("dead", time.Hour)
	a.add("skewed", time.Hour) // alive, with a clock an hour behind ours
	now := time.Now()
	look := func() int {
		t.Helper()
		testutil.NoError(t, c.collect(t.Context(), now.Add(time.Hour)))
		return c.Count()
	}
	if n := look(); n != 2 {
		t.Errorf("%d live at first sight, want 2 with our own", n)
	}
	a.add("skewed", time.Hour) // renews
	if n := look(); n != 3 {
		t.Errorf("%d live once the skewed one renewed, want 3", n)
	}
	// 30 s later by our clock:
	for name, s := range c.seen {
		if !strings.HasSuffix(name, "skewed") {
			s.at = now.Add(-leaseDuration - time.Second)
			c.seen[name] = s
		}
	}
	if n := look(); n != 3 || a.lease(NamePrefix+"dead") != nil || a.lease(NamePrefix+"skewed") == nil || a.lease(NamePrefix+"live") == nil {
		t.Errorf("%d live; left: %v", n, a.leases)
	}
	if m.culs["0"] != 1 || m.deletes["200"] != 1 || m.lists["200"] != 3 {
		t.Errorf("metrics: %v %v %v", m.culs, m.deletes, m.lists)
	}
	a.down = 503
	if err := c.collect(t.Context(), now.Add(time.Hour)); err == nil || c.Count() != 3 {
		t.Errorf("an outage must leave the count: %d, %v", c.Count(), err)
	}
	if m.lists["503InternalError"] != 1 {
		t.Errorf("metrics: %v", m.lists)
	}
}

func TestDeleteYieldsToARenewal(t *testing.T) {
	a, m := newAPI(t), &counts{}
	c := controller(a.client(), m, logging.Discard())
	a.add("x", time.Hour)
	old := a.lease(NamePrefix + "x").DeepCopy()
	a.add("x", 0)
	if err := c.delete(t.Context(), old); err != nil {
		t.Error(err)
	}
	if a.lease(NamePrefix+"x") == nil || m.deletes["409Conflict"] != 1 || len(m.culs) != 0 {
		t.Errorf("metrics %v %v", m.deletes, m.culs)
	}
}

// memory is a Leases without a network, for tests in fake time.
type memory struct {
	Leases
	mu      sync.Mutex
	err     error
	renewed []time.Time
	deleted bool
	hang    bool
}

func (f *memory) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	_, err := f.state()
	return leaseOf("me", 0), err
}
func (f *memory) Update(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	hang, err := f.state()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err == nil {
		f.renewed = append(f.renewed, time.Now())
	}
	return l, err
}
func (f *memory) List(context.Context, metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	_, err := f.state()
	return &coordinationv1.LeaseList{}, err
}

func (f *memory) state() (hang bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hang, f.err
}

func (f *memory) become(hang bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang, f.err = hang, err
}
func (f *memory) Delete(context.Context, string, metav1.DeleteOptions) error {
	f.deleted = true
	return apierrors.NewNotFound(schema.GroupResource{}, "x")
}

func TestOutageIsRetriedBeforeTheLeaseRunsOutAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &memory{}
		log, hook := logtest.NewNullLogger()
		log.SetLevel(logrus.InfoLevel)
		done := make(chan struct{})
		go func() { defer close(done); controller(f, nil, log).Run(ctx) }()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		f.become(false, fmt.Errorf("connection refused"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		f.become(false, nil)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		f.become(true, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		f.become(false, nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		cancel()
		<-done
		if gap := f.renewed[2].Sub(f.renewed[1]); len(f.renewed) < 4 || gap > leaseDuration {
			t.Errorf("renewed at %v: the lease ran out in an outage of 20 s", f.renewed)
		}
		if last := f.renewed[len(f.renewed)-1]; time.Since(last) > 10*time.Second {
			t.Errorf("not renewed after calls that hung: %v", f.renewed)
		}
		if !f.deleted {
			t.Error("not deleted")
		}
		if n := len(hook.AllEntries()); n > 8 {
			t.Errorf("%d log lines for two outages", n)
		}
	})
}

// graveyard is a memory with the leases of many servers that are gone, each of
// which takes a second to delete.
type graveyard struct {
	*memory
	left []coordinationv1.Lease
}

func (g *graveyard) List(context.Context, metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return &coordinationv1.LeaseList{Items: slices.Clone(g.left)}, nil
}

func (g *graveyard) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	time.Sleep(time.Second)
	g.left = slices.DeleteFunc(g.left, func(l coordinationv1.Lease) bool { return l.Name == name })
	return nil
}

// A server that has many leases to delete renews its own all the same.
func TestManyExpiredLeasesHoldUpNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := &graveyard{memory: &memory{}}
		for i := range 100 {
			g.left = append(g.left, *leaseOf(fmt.Sprint("gone-", i), time.Hour))
		}
		done := make(chan struct{})
		go func() { defer close(done); controller(g, nil, logging.Discard()).Run(ctx) }()
		time.Sleep(5 * time.Minute)
		cancel()
		<-done
		for i := 1; i < len(g.renewed); i++ {
			if gap := g.renewed[i].Sub(g.renewed[i-1]); gap >= renewInterval+callTimeout {
				t.Errorf("not renewed for %v", gap)
			}
		}
		if len(g.left) > 0 {
			t.Errorf("%d are left", len(g.left))
		}
	})
}

// listing is a memory that lists the leases of others alone.
type listing struct {
	*memory
	others []coordinationv1.Lease
}

func (l listing) List(context.Context, metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return &coordinationv1.LeaseList{Items: l.others}, nil
}

// A server whose own lease is not there, as it cannot be renewed just now, or somebody
// has deleted it, is one of the servers nevertheless.
func TestAServerCountsItselfWithoutItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for others, want := range map[int]int{2: 3, 0: 0} { // without any, nothing is known
			l := listing{memory: &memory{}}
			for i := range others {
				l.others = append(l.others, *leaseOf(fmt.Sprint("other-", i), time.Second))
			}
			c := controller(l, nil, logging.Discard())
			if err := c.collect(t.Context(), time.Now()); err != nil || c.Count() != want {
				t.Errorf("%d servers beside %d others, want %d: %v", c.Count(), others, want, err)
			}
		}
	})
}
