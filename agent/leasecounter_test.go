package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

// leaseAPI is a Kubernetes API without a network: what it lists, and what its watches tell.
type leaseAPI struct {
	watch  func(began func()) error // what a watch comes to; nil: it tells the events
	events chan leaseEvent
	asked  atomic.Int32 // so often
	ahead  atomic.Int64 // its clock, of ours, in nanoseconds; 0: it does not say the time

	mu   sync.Mutex
	held []*kubeapi.Lease
	down *kubeapi.Error // its answer to all; nil: it is up
}

// leaseEvent is an event of a watch. Without a lease, it is the watch's end in order.
type leaseEvent struct {
	what  kubeapi.Event
	lease *kubeapi.Lease
}

const leaseSelector = "k8s-app=konnectivity-server"

func newLeaseAPI(held ...*kubeapi.Lease) *leaseAPI {
	return &leaseAPI{held: held, events: make(chan leaseEvent, 16)}
}

func (a *leaseAPI) String() string { return "ns" }

// become changes what it answers.
func (a *leaseAPI) become(down *kubeapi.Error, held ...*kubeapi.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down, a.held = down, held
}

func (a *leaseAPI) now() (down *kubeapi.Error, held []*kubeapi.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.down, a.held
}

func (a *leaseAPI) List(_ context.Context, opts kubeapi.ListOptions) (*kubeapi.List[*kubeapi.Lease], error) {
	a.asked.Add(1)
	switch down, held := a.now(); {
	case down != nil:
		return nil, down
	case opts.Labels != leaseSelector:
		return nil, fmt.Errorf("listed by %+v", opts)
	default:
		list := &kubeapi.List[*kubeapi.Lease]{Metadata: kubeapi.ListMetadata{ResourceVersion: "7"}, Items: held}
		list.Time = a.time()
		return list, nil
	}
}

// time is what its answers say.
func (a *leaseAPI) time() (now time.Time) {
	if ahead := a.ahead.Load(); ahead != 0 {
		now = time.Now().Add(time.Duration(ahead))
	}
	return now
}

func (a *leaseAPI) Watch(ctx context.Context, opts kubeapi.WatchOptions, began func(), take func(kubeapi.Event, *kubeapi.Lease)) error {
	a.asked.Add(1)
	switch down, _ := a.now(); {
	case down != nil:
		return down
	case opts.Labels != leaseSelector || opts.From != "7":
		return fmt.Errorf("watched by %+v", opts)
	case a.watch != nil:
		return a.watch(began)
	}
	*opts.Now = a.time()
	began()
	for {
		select {
		case e := <-a.events:
			if e.lease == nil {
				return nil
			}
			take(e.what, e.lease)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lease(name string, renewed time.Duration) *kubeapi.Lease {
	seconds, at := int32(30), kubeapi.MicroTime{Time: time.Now().Add(-renewed)}
	lease := &kubeapi.Lease{Spec: kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at}}
	lease.Name, lease.ResourceVersion = name, "7"
	return lease
}

// counted is a counter that runs in a synctest bubble.
type counted struct {
	*LeaseCounter
	t   *testing.T
	api *leaseAPI
	log lines
}

func counting(t *testing.T, api *leaseAPI) *counted {
	t.Helper()
	log, hook := logtest.NewNullLogger()
	c := &counted{t: t, api: api, log: lines{hook}}
	c.LeaseCounter = testutil.Must(NewLeaseCounter(LeaseOptions{Client: api, Selector: leaseSelector, Log: log, Registerer: prometheus.NewRegistry()}))(t)
	go c.Run(t.Context())
	return c
}

// tell has the watch tell of a lease.
func (c *counted) tell(what kubeapi.Event, lease *kubeapi.Lease) {
	c.api.events <- leaseEvent{what, lease}
}

// endWatch ends the watch in order, as API servers do now and then.
func (c *counted) endWatch() { c.api.events <- leaseEvent{} }

func (c *counted) want(want int) {
	c.t.Helper()
	synctest.Wait()
	n, known := c.Count()
	testutil.Holds(c.t, n == want && known == (want > 0), "counted %d, %v, want %d", n, known, want)
}

func TestLeaseCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := counting(t, newLeaseAPI(lease("a", 0), lease("b", 20*time.Second), lease("old", time.Minute)))
		c.want(2)
		c.tell(kubeapi.Added, lease("c", 0))
		c.want(3)
		c.tell(kubeapi.Modified, lease("old", 0))
		c.want(4)
		c.tell(kubeapi.Deleted, lease("a", 0))
		c.want(3)
		testutil.Holds(t, promtest.ToFloat64(c.lists.WithLabelValues("200", "")) == 1 &&
			promtest.ToFloat64(c.watches.WithLabelValues("200", "")) == 1, "calls are not counted")
		c.endWatch()
		c.tell(kubeapi.Added, lease("d", 0)) // by the next one
		time.Sleep(2 * time.Second)
		c.want(4)
	})
}

// A node's clock does not matter: leases hold by that of the API, also once that was set.
func TestLeasesByTheClockOfTheAPI(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			api := newLeaseAPI(lease("renewed", 10*time.Second-ahead), lease("expired", 40*time.Second-ahead), lease("late", time.Second-ahead))
			api.ahead.Store(int64(ahead))
			c := counting(t, api)
			c.want(2)
			time.Sleep(25 * time.Second)
			c.want(1)
			api.ahead.Add(int64(3 * time.Second))
			c.endWatch()
			time.Sleep(2 * time.Second) // until the next one
			c.tell(kubeapi.Added, lease("newer", 28*time.Second-ahead))
			c.tell(kubeapi.Added, lease("newest", 26*time.Second-ahead))
			c.want(1)
		})
	}
}

// While the API is down the last count holds, and one line says so.

func TestLeasesWhileTheAPIIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		api.become(&kubeapi.Error{Code: http.StatusForbidden, Reason: kubeapi.Forbidden})
		c := counting(t, api)
		after := func(lines, count int) {
			t.Helper()
			time.Sleep(15 * time.Second)
			c.want(count)
			testutil.Equal(t, c.log.count(), lines, "lines of the log %v", c.log.since(0))
		}
		after(1, 0)
		testutil.AtLeast(t, promtest.ToFloat64(c.lists.WithLabelValues("403", "Forbidden")), 2, "forbidden lists")
		api.become(nil, lease("a", 0))
		after(2, 1)
		api.become(&kubeapi.Error{Code: http.StatusInternalServerError})
		c.endWatch()
		after(3, 1)
	})
}

// A server whose clock is wrong counts while it renews its lease, and no longer than others once
// it does not.
func TestLeasesOfServersWithWrongClocks(t *testing.T) {
	for _, behind := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := counting(t, newLeaseAPI(lease("a", 0), lease("wrong", behind)))
			sure := func(n int) int { // at first sight, a lease that is said to be over counts for nothing
				if behind < 0 {
					n++
				}
				return n
			}
			c.want(sure(1))
			for i := range 4 {
				time.Sleep(15 * time.Second)
				for _, name := range []string{"a", "wrong"} {
					renewed := lease(name, 0)
					if renewed.ResourceVersion = fmt.Sprint(8 + i); name == "wrong" {
						renewed.Spec.RenewTime.Time = renewed.Spec.RenewTime.Add(-behind)
					}
					c.tell(kubeapi.Modified, renewed)
				}
				c.want(2)
			}
			time.Sleep(20 * time.Second)
			c.want(2)
			renewed := lease("a", 0)
			renewed.ResourceVersion = "12"
			c.tell(kubeapi.Modified, renewed)
			c.want(2)
			time.Sleep(10 * time.Second)
			c.want(1)
		})
	}
}

// However seldom they are counted, leases hold from their renewals on.
func TestLeasesThatAreSeldomCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := counting(t, newLeaseAPI(lease("a", 0), lease("gone", 0)))
		c.want(2)
		for i := range 4 {
			time.Sleep(10 * time.Second)
			for _, name := range []string{"a", "gone"} {
				renewed := lease(name, 0)
				if renewed.ResourceVersion = fmt.Sprint(8 + i); name == "a" || i == 0 {
					c.tell(kubeapi.Modified, renewed)
				}
			}
		}
		c.want(1)
	})
}

// Expired leases are no news that servers are gone: the last count holds.
func TestAllLeasesExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := counting(t, newLeaseAPI(lease("a", 0), lease("b", 0)))
		c.want(2)
		c.tell(kubeapi.Deleted, lease("a", 0))
		c.want(1)
		time.Sleep(time.Hour)
		c.want(1)
		b, _ := c.leases.Get("b")
		live, over := c.seen.Judge(b, time.Now(), time.Now())
		testutil.Holds(t, !live && over, "b has not expired")
	})
}

// Where a middlebox ends every watch at once, even before it began, an agent
// does not ask again and again: there may be thousands of agents.
func TestWatchesThatEndAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		watch func(began func()) error
		lines int // of log
	}{
		"after it began":  {func(began func()) error { began(); return nil }, 0},
		"before it began": {func(func()) error { return io.EOF }, 1},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			api := newLeaseAPI()
			api.watch = c.watch
			counter := counting(t, api)
			time.Sleep(10 * time.Minute)
			testutil.Between(t, api.asked.Load(), 10, 80, "how often it asked in ten minutes")
			testutil.Equal(t, counter.log.count(), c.lines, "lines of log: %v", counter.log.since(0))
		})
	}
}
