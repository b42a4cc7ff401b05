package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/transport"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

// fakeAPI is the part of a Kubernetes API that counts leases. It speaks JSON.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	leases   map[string]kubeapi.Lease
	missed   map[string]bool // leases that were put after the first list, and are told to the next watch
	status   int             // of every answer, if not 0
	calls    []string
	watchers map[chan leaseEvent]bool
	stop     chan struct{}
}

func newFakeAPI(t *testing.T) *fakeAPI {
	api := &fakeAPI{t: t, leases: map[string]kubeapi.Lease{}, missed: map[string]bool{}, watchers: map[chan leaseEvent]bool{}, stop: make(chan struct{})}
	api.server = httptest.NewServer(api)
	t.Cleanup(func() { close(api.stop); api.server.Close() })
	return api
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	a.mu.Lock()
	a.calls = append(a.calls, fmt.Sprintf("%s %s selector=%s watch=%s from=%s", r.Method, r.URL.Path, query.Get("labelSelector"), query.Get("watch"), query.Get("resourceVersion")))
	status := a.status
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status != 0:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(kubeapi.Error{Kind: "Status", Status: "Failure", Reason: kubeapi.Forbidden, Code: status})
	case query.Get("watch") != "":
		a.watch(w, r)
	default:
		a.list(w)
	}
}

func (a *fakeAPI) list(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := kubeapi.List[*kubeapi.Lease]{Kind: "LeaseList", Metadata: kubeapi.ListMetadata{ResourceVersion: "7"}}
	for _, lease := range a.leases {
		list.Items = append(list.Items, &lease)
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan leaseEvent, 16)
	a.mu.Lock()
	for name, lease := range a.leases {
		if a.missed[name] {
			events <- leaseEvent{kubeapi.Added, lease}
		}
	}
	a.watchers[events] = true
	a.mu.Unlock()
	w.(http.Flusher).Flush()
	for {
		select {
		case e, more := <-events:
			if !more {
				return
			}
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		case <-a.stop:
			return
		}
	}
}

// leaseEvent is an event of a watch.
type leaseEvent struct {
	Type   kubeapi.Event `json:"type"`
	Object kubeapi.Lease `json:"object"`
}

func (a *fakeAPI) emit(kind kubeapi.Event, lease kubeapi.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for events := range a.watchers {
		events <- leaseEvent{kind, lease}
	}
}

// endWatches ends every watch in order, as API servers do now and then.
func (a *fakeAPI) endWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for events := range a.watchers {
		close(events)
		delete(a.watchers, events)
	}
}

func (a *fakeAPI) put(l kubeapi.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leases[l.Name], a.missed[l.Name] = l, len(a.calls) > 0
}

func (a *fakeAPI) setStatus(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

func (a *fakeAPI) watching() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.watchers) > 0
}

func lease(name string, renewed time.Duration) kubeapi.Lease {
	seconds, at := int32(30), kubeapi.MicroTime{Time: time.Now().Add(-renewed)}
	return kubeapi.Lease{
		Meta: kubeapi.Meta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1", Metadata: kubeapi.Metadata{Name: name, Namespace: "ns"}},
		Spec: kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
}

// counting runs a counter against api until the test ends.
func counting(t *testing.T, api *fakeAPI, hook logrus.Hook) *LeaseCounter {
	t.Helper()
	client := testutil.Must(kubeapi.NewLeases(&kubeapi.Config{URL: api.server.URL}, "ns"))(t)
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(hook)
	c := testutil.Must(NewLeaseCounter(LeaseOptions{Client: client, Selector: "k8s-app=konnectivity-server", Log: log, Registerer: prometheus.NewRegistry()}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		client.CloseIdle()
	})
	return c
}

func wantCount(t *testing.T, c *LeaseCounter, want int) {
	t.Helper()
	testutil.Eventually(t, "the count", func() bool { n, known := c.Count(); return n == want && known == (want > 0) })
}

func TestLeaseCounter(t *testing.T) {
	api := newFakeAPI(t)
	api.put(lease("a", 0))
	api.put(lease("b", 20*time.Second))
	api.put(lease("old", time.Minute))
	c := counting(t, api, &lines{})
	wantCount(t, c, 2)
	testutil.Eventually(t, "a watch", api.watching)
	api.emit("ADDED", lease("c", 0))
	wantCount(t, c, 3)
	api.emit("MODIFIED", lease("old", 0))
	wantCount(t, c, 4)
	api.emit("DELETED", lease("a", 0))
	wantCount(t, c, 3)

	api.mu.Lock()
	defer api.mu.Unlock()
	const path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
	if want := "GET " + path + " selector=k8s-app=konnectivity-server watch= from="; api.calls[0] != want {
		t.Errorf("listed by %q, want %q", api.calls[0], want)
	}
	if !strings.HasPrefix(api.calls[1], "GET "+path+" selector=k8s-app=konnectivity-server watch=") || !strings.HasSuffix(api.calls[1], "from=7") {
		t.Errorf("watched by %q", api.calls[1])
	}
	if promtest.ToFloat64(c.lists.WithLabelValues("200", "")) != 1 || promtest.ToFloat64(c.watches.WithLabelValues("200", "")) != 1 {
		t.Error("calls are not counted")
	}
}

func TestLeasesAfterTheWatchEnds(t *testing.T) {
	api := newFakeAPI(t)
	api.put(lease("a", 0))
	c := counting(t, api, &lines{})
	wantCount(t, c, 1)
	testutil.Eventually(t, "a watch", api.watching)
	api.put(lease("b", 0))
	api.endWatches()
	wantCount(t, c, 2)
}

// While the API is down the last count holds, and one line says so.
func TestLeasesWhileTheAPIIsDown(t *testing.T) {
	api := newFakeAPI(t)
	api.setStatus(http.StatusForbidden)
	log := &lines{}
	c := counting(t, api, log)
	testutil.Eventually(t, "lists that are forbidden", func() bool { return promtest.ToFloat64(c.lists.WithLabelValues("403", "Forbidden")) > 1 })
	if n, known := c.Count(); known {
		t.Errorf("knows %d", n)
	}
	if n := log.count(); n != 1 {
		t.Errorf("%d log lines: %v", n, log.all)
	}
	api.put(lease("a", 0))
	api.setStatus(0)
	wantCount(t, c, 1)
	testutil.Eventually(t, "a watch", api.watching)
	api.setStatus(http.StatusInternalServerError)
	api.endWatches()
	testutil.Eventually(t, "lines of the log: down, up, down", func() bool { return log.count() >= 3 })
	wantCount(t, c, 1)
}

func TestValidLease(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) *kubeapi.MicroTime { return &kubeapi.MicroTime{Time: now.Add(-ago)} }
	seconds := int32(30)
	for name, c := range map[string]struct {
		spec kubeapi.LeaseSpec
		want bool
	}{
		"renewed":            {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: at(29 * time.Second)}, true},
		"expired":            {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: at(31 * time.Second)}, false},
		"taken, not renewed": {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, AcquireTime: at(time.Second)}, true},
		"renewal counts":     {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, AcquireTime: at(time.Second), RenewTime: at(time.Minute)}, false},
		"without times":      {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds}, false},
		"without a duration": {kubeapi.LeaseSpec{RenewTime: at(0)}, false},
		"empty":              {kubeapi.LeaseSpec{}, false},
	} {
		if got := validLease(&kubeapi.Lease{Spec: c.spec}, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Expired leases are no news that servers are gone: the last count holds.
func TestAllLeasesExpired(t *testing.T) {
	api := newFakeAPI(t)
	api.put(lease("a", 0))
	api.put(lease("b", 0))
	c := counting(t, api, &lines{})
	wantCount(t, c, 2)
	testutil.Eventually(t, "a watch", api.watching)
	api.emit(kubeapi.Deleted, lease("a", 0))
	wantCount(t, c, 1)
	api.emit(kubeapi.Modified, lease("b", time.Hour))
	testutil.Eventually(t, "the news of b", func() bool {
		b, _ := c.leases.Get("b")
		return !validLease(b, time.Now())
	})
	if n, known := c.Count(); n != 1 || !known {
		t.Errorf("%d, %v", n, known)
	}
}

// answers is a Kubernetes API without a network: what it says to lists, and to watches.
type answers struct {
	list  string
	watch func() (*http.Response, error)

	asked int // so often, for both
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.asked++
	if r.URL.Query().Get("watch") != "" {
		return a.watch()
	}
	return said(a.list), nil
}

func said(body string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

// Where a middlebox ends every watch at once, even before it began, an agent
// does not ask again and again: there may be thousands of agents.
func TestWatchesThatEndAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		watch func() (*http.Response, error)
		lines int // of log
	}{
		"after it began":  {func() (*http.Response, error) { return said(""), nil }, 0},
		"before it began": {func() (*http.Response, error) { return nil, io.EOF }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &answers{list: `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"7"}}`, watch: c.watch}
				client := testutil.Must(kubeapi.NewLeases(&kubeapi.Config{URL: "http://api", Transport: transport.Config{Transport: api}}, "ns"))(t)
				log := &lines{}
				logger := logrus.New()
				logger.SetOutput(io.Discard)
				logger.AddHook(log)
				counter := testutil.Must(NewLeaseCounter(LeaseOptions{Client: client, Log: logger, Registerer: prometheus.NewRegistry()}))(t)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				counter.Run(ctx)
				if api.asked < 10 || api.asked > 80 {
					t.Errorf("asked %d times in ten minutes", api.asked)
				}
				if log.count() != c.lines {
					t.Errorf("%d lines of log: %v", log.count(), log.all)
				}
			})
		})
	}
}
