package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/peers"
)

const (
	// leaseListPage bounds an answer, far above any real number of servers.
	leaseListPage = 500
	// leaseRelist is how often leases are listed afresh although a watch
	// runs, in case the watch lies dead without saying so.
	leaseRelist = 5 * time.Minute
	// leaseRetry is the first pause after a list or watch, and leaseRetryCap the
	// longest. Pauses grow until a watch has lasted for leaseWatched: something on
	// the way may end each at once, and lists cost the API more.
	leaseRetry    = time.Second
	leaseRetryCap = 30 * time.Second
	leaseWatched  = 5 * time.Second
	// leaseTimeout bounds a list.
	leaseTimeout = 10 * time.Second
)

// LeaseOptions say which leases stand for servers.
type LeaseOptions struct {
	Client     kubeapi.Leases        // of the namespace of the leases
	Selector   string                // label selector
	Log        logrus.FieldLogger    // required
	Registerer prometheus.Registerer // required
}

// LeaseCounter counts servers by the leases they keep renewing. It is a Counter.
type LeaseCounter struct {
	opts    LeaseOptions
	lists   *prometheus.CounterVec   // http_response_code, reason
	watches *prometheus.CounterVec   // the same
	latency *prometheus.HistogramVec // http_response_code

	mu     sync.Mutex
	leases map[string]coordinationv1.Lease // by name; nil until first listed
	last   int                             // the last count that was not 0
	broken bool                            // the API failed, and that was logged
}

// NewLeaseCounter registers its metrics and returns a counter that knows nothing
// until Run.
func NewLeaseCounter(opts LeaseOptions) (*LeaseCounter, error) {
	c := &LeaseCounter{
		opts: opts,
		lists: counterVec("lease_lists_total",
			"Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason", "http_response_code", "reason"),
		watches: counterVec("lease_watches_total",
			"Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason", "http_response_code", "reason"),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "lease_list_latency_seconds",
			Help: "Latency of server lease listing in seconds", Buckets: latencyBuckets,
		}, []string{"http_response_code"}),
	}
	for _, m := range []prometheus.Collector{c.lists, c.watches, c.latency} {
		if err := opts.Registerer.Register(m); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Count returns how many leases have not expired, or the last number that was
// not zero where all have: an API that cannot be reached keeps servers from
// renewing just as agents from reading. false until the first list.
func (c *LeaseCounter) Count() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, lease := range c.leases {
		if validLease(&lease, time.Now()) {
			n++
		}
	}
	if n > 0 {
		c.last = n
	}
	return c.last, c.last > 0
}

// validLease says that a lease was renewed, or at least taken, less than its
// duration ago.
func validLease(lease *coordinationv1.Lease, now time.Time) bool {
	renewed := lease.Spec.RenewTime
	if renewed == nil {
		renewed = lease.Spec.AcquireTime
	}
	if renewed == nil || lease.Spec.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(renewed.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second))
}

// Run lists and watches until ctx ends. It retries after failures, counts them,
// and logs the first of several in a row.
func (c *LeaseCounter) Run(ctx context.Context) {
	retry := peers.Backoff{Base: leaseRetry, Limit: leaseRetryCap, Growth: failGrowth}
	for ctx.Err() == nil {
		version, err := c.list(ctx)
		if err == nil {
			err = c.follow(ctx, version, &retry)
		}
		if err != nil && ctx.Err() == nil {
			c.complain(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry.Failure()): // also where a watch ended in order, as they do
		}
	}
}

// list reads all leases and returns the version to watch from.
func (c *LeaseCounter) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	start := time.Now()
	list, err := c.opts.Client.List(ctx, metav1.ListOptions{LabelSelector: c.opts.Selector, Limit: leaseListPage})
	code, reason := apiStatus(err)
	c.lists.WithLabelValues(code, reason).Inc()
	c.latency.WithLabelValues(code).Observe(time.Since(start).Seconds())
	if err != nil {
		return "", fmt.Errorf("list the servers' leases: %w", err)
	}
	leases := make(map[string]coordinationv1.Lease, len(list.Items))
	for _, lease := range list.Items {
		leases[lease.Name] = lease
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases = leases
	return list.ResourceVersion, nil
}

// follow keeps the leases current until the watch ends; nil when it ended in
// order. Where the watch has lasted, retry starts anew.
func (c *LeaseCounter) follow(ctx context.Context, version string, retry *peers.Backoff) error {
	bound := int64(leaseRelist / time.Second)
	ctx, cancel := context.WithTimeout(ctx, leaseRelist+leaseTimeout)
	defer cancel()
	w, err := c.opts.Client.Watch(ctx, metav1.ListOptions{
		LabelSelector: c.opts.Selector, ResourceVersion: version, TimeoutSeconds: &bound,
	})
	code, reason := apiStatus(err)
	c.watches.WithLabelValues(code, reason).Inc()
	if err != nil {
		return fmt.Errorf("watch the servers' leases: %w", err)
	}
	defer w.Stop()
	began := time.Now()
	defer func() {
		if time.Since(began) >= leaseWatched {
			retry.Succeed()
		}
	}()
	c.works()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			if apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
				return nil // list anew
			}
			return fmt.Errorf("watch the servers' leases: %w", apierrors.FromObject(event.Object))
		}
		c.take(event)
	}
	return nil
}

func (c *LeaseCounter) take(event watch.Event) {
	lease, ok := event.Object.(*coordinationv1.Lease)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		c.leases[lease.Name] = *lease
	case watch.Deleted:
		delete(c.leases, lease.Name)
	}
}

func (c *LeaseCounter) works() {
	c.mu.Lock()
	was := c.broken
	c.broken = false
	c.mu.Unlock()
	if was {
		c.opts.Log.Info("servers can be counted by their leases again")
	}
}

func (c *LeaseCounter) complain(err error) {
	c.mu.Lock()
	first := !c.broken
	c.broken = true
	c.mu.Unlock()
	if first {
		c.opts.Log.WithError(err).Warn("servers cannot be counted by their leases; using what is known")
	}
}

// apiStatus is what an API call came to, as the metrics' labels have it. A call
// that got no answer has code 0.
func apiStatus(err error) (code, reason string) {
	if err == nil {
		return strconv.Itoa(http.StatusOK), ""
	}
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return "0", "Unreachable"
	}
	return strconv.Itoa(int(api.Status().Code)), string(api.Status().Reason)
}
