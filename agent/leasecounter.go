package agent

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/observe"
)

// LeaseOptions say which leases stand for servers.
type LeaseOptions struct {
	Client     kubeapi.MirrorAPI[*kubeapi.Lease] // of the namespace of the leases
	Selector   string                            // label selector
	Log        logrus.FieldLogger                // required
	Registerer prometheus.Registerer             // required
}

// LeaseCounter counts servers by the leases they keep renewing. It is a Counter. Between the
// Mirror of those and the API it counts and logs how calls go.
type LeaseCounter struct {
	opts    LeaseOptions
	leases  *kubeapi.Mirror[*kubeapi.Lease]
	lists   *prometheus.CounterVec   // http_response_code, reason
	watches *prometheus.CounterVec   // the same
	latency *prometheus.HistogramVec // http_response_code
	broken  atomic.Bool              // the API failed, and that was logged

	mu       sync.Mutex
	seen     kubeapi.Sightings
	last     int       // the last count that was not 0
	api, own time.Time // of the last answer that says its time, by the API's clock and by ours
}

// NewLeaseCounter registers its metrics and returns a counter that knows nothing
// until Run.
func NewLeaseCounter(opts LeaseOptions) (*LeaseCounter, error) {
	to := observe.NewMaker(opts.Registerer, MetricsPrefix)
	c := &LeaseCounter{
		opts: opts,
		lists: to.Counter("lease_lists_total",
			"Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason", "http_response_code", "reason"),
		watches: to.Counter("lease_watches_total",
			"Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason", "http_response_code", "reason"),
		latency: to.Histogram("lease_list_latency_seconds", "Latency of server lease listing in seconds", latencyBuckets, "http_response_code"),
	}
	c.leases = kubeapi.NewMirror(c, opts.Selector, "")
	return c, to.Err()
}

// Count returns how many servers are there by their leases, or the last number that was
// not zero where none is: an API that cannot be reached keeps servers from
// renewing just as agents from reading. false until the first list.
func (c *LeaseCounter) Count() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := time.Now(), 0
	for _, lease := range c.look(now) {
		if live, _ := c.seen.Judge(lease, now, c.now()); live {
			n++
		}
	}
	if n > 0 {
		c.last = n
	}
	return c.last, c.last > 0
}

// look returns all leases, and takes in which were renewed. mu is held.
func (c *LeaseCounter) look(now time.Time) (all []*kubeapi.Lease) {
	names, _ := c.leases.Names() // which have been logged
	for _, name := range names {
		if lease, found := c.leases.Get(name); found {
			all = append(all, lease)
		}
	}
	c.seen.Look(all, now)
	return all
}

// now is the time by the clock of the API, which is near the servers: a node's may be minutes off,
// and may be set meanwhile. Every watch, of some minutes, tells it anew: the API's may be set, too,
// and ours runs at another rate, or stands still with its machine.
func (c *LeaseCounter) now() time.Time {
	if c.api.IsZero() {
		return time.Now()
	}
	return c.api.Add(time.Since(c.own))
}

// Run keeps the leases current until ctx ends. It retries after failures, counts them,
// and logs the first of several in a row.
func (c *LeaseCounter) Run(ctx context.Context) { c.leases.Run(ctx) }

// String implements kubeapi.MirrorAPI.
func (c *LeaseCounter) String() string { return c.opts.Client.String() }

// List implements kubeapi.MirrorAPI.
func (c *LeaseCounter) List(ctx context.Context, opts kubeapi.ListOptions) (*kubeapi.List[*kubeapi.Lease], error) {
	start := time.Now()
	list, err := c.opts.Client.List(ctx, opts)
	code, reason := apiStatus(err)
	c.lists.WithLabelValues(code, reason).Inc()
	c.latency.WithLabelValues(code).Observe(time.Since(start).Seconds())
	if err != nil {
		c.note(ctx, err)
		return nil, err
	}
	c.answered(list.Time)
	return list, nil
}

// answered notes the time of an answer by the API's clock; zero: it does not say.
func (c *LeaseCounter) answered(at time.Time) {
	if at.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.api, c.own = at, time.Now()
}

// Watch implements kubeapi.MirrorAPI.
func (c *LeaseCounter) Watch(ctx context.Context, opts kubeapi.WatchOptions, began func(), take func(kubeapi.Event, *kubeapi.Lease)) error {
	agreed := false
	var now time.Time
	opts.Now = &now
	err := c.opts.Client.Watch(ctx, opts, func() {
		agreed = true
		c.answered(now)
		c.watches.WithLabelValues(apiStatus(nil)).Inc()
		c.note(ctx, nil)
		began()
	}, func(what kubeapi.Event, lease *kubeapi.Lease) {
		take(what, lease)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.look(time.Now()) // Count may be called long after a renewal
	})
	if !agreed {
		c.watches.WithLabelValues(apiStatus(err)).Inc()
	}
	if err != nil && kubeapi.ReasonOf(err) != kubeapi.Expired {
		c.note(ctx, err)
	}
	return err
}

// note logs the first of several failures in a row, and their end.
func (c *LeaseCounter) note(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the agent stops
	}
	switch was := c.broken.Swap(err != nil); {
	case err != nil && !was:
		c.opts.Log.WithError(err).Warn("servers cannot be counted by their leases; using what is known")
	case err == nil && was:
		c.opts.Log.Info("servers can be counted by their leases again")
	}
}

// apiStatus is what an API call came to, as the metrics' labels have it. A call
// that got no answer has code 0.
func apiStatus(err error) (code, reason string) {
	if err == nil {
		return strconv.Itoa(http.StatusOK), ""
	}
	var refused *kubeapi.Error
	if !errors.As(err, &refused) {
		return "0", "Unreachable"
	}
	return strconv.Itoa(refused.Code), refused.Reason
}
