// Package lease publishes that a server is alive, as a Lease that agents count,
// and deletes the Leases of servers that are gone. A Lease may also say where other
// servers reach this one.
//
// RBAC it needs, on leases of coordination.k8s.io in its namespace: get,
// create, update, list, delete.
//
// A Controller owns its lease. Options.Leases makes the server run one.
package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/wait"
)

const (
	// renewInterval, NamePrefix and kubeapi.LeaseDuration are upstream's
	// (cmd/server/app/server.go and pkg/server/leases/controller.go), so that
	// old agents and servers beside ours see one kind of lease.
	renewInterval = 15 * time.Second // between renewals
	NamePrefix    = "konnectivity-proxy-server-"

	// PeerAnnotation of a lease is where other servers reach this one, as ADDRESS:PORT.
	PeerAnnotation = "konnectivity-peer-address"

	// countInterval is how often the leases are listed. Old agents learn a new
	// count up to 20 s after their server does, and must have it within 30 s.
	countInterval = 5 * time.Second

	// retryInterval allows several further attempts at a failed renewal before
	// the lease expires.
	retryInterval = 4 * time.Second

	// callTimeout bounds one API call, so that a hanging one leaves time for
	// another before the lease expires.
	callTimeout = 5 * time.Second
)

// Metrics receives the outcomes of API calls; code is the HTTP status. Its
// methods must not block.
type Metrics interface {
	LeaseListed(code int, reason string, took time.Duration)
	LeaseDeleted(code int, reason string, took time.Duration)
	LeaseCulled()
}

// Leases is what a Controller needs of the Kubernetes API.
type Leases interface {
	Get(ctx context.Context, name string) (*kubeapi.Lease, error)
	List(ctx context.Context, opts kubeapi.ListOptions) (*kubeapi.List[*kubeapi.Lease], error)
	Create(ctx context.Context, lease *kubeapi.Lease) (*kubeapi.Lease, error)
	Update(ctx context.Context, lease *kubeapi.Lease, part ...string) (*kubeapi.Lease, error)
	Delete(ctx context.Context, name, version string) error
}

// Config configures a Controller.
type Config struct {
	Leases   Leases // of one namespace; kubeapi.NewLeases makes one
	ServerID string
	Labels   map[string]string // labels of the lease; leases are listed by them
	Peer     netip.AddrPort    // where other servers reach this one; the zero value: not published
	Metrics  Metrics
	Changed  func(count int) // called on Run's goroutine with a new number of live servers
	Log      logrus.FieldLogger
}

// Controller keeps one server's lease and collects expired ones. Run is called
// once; Count may be called from any goroutine.
type Controller struct {
	cfg      Config
	name     string
	selector string

	count  atomic.Int64
	peers  atomic.Pointer[[]netip.AddrPort]
	listed chan struct{} // closed once peers are known

	// Of Run's goroutine:
	own     *kubeapi.Lease // as last returned by the API
	seen    kubeapi.Sightings
	failing map[string]bool // operations that failed last time, so that each is logged once
}

// New returns a controller; nothing happens before Run.
func New(cfg Config) *Controller {
	return &Controller{
		cfg:      cfg,
		name:     NamePrefix + cfg.ServerID,
		selector: labels.FormatLabels(cfg.Labels),
		listed:   make(chan struct{}),
		failing:  make(map[string]bool),
	}
}

// Count returns the number of live servers by their leases, this one included,
// as last listed; 0 until leases could be listed. It stays unchanged while the
// API is away.
func (c *Controller) Count() int { return int(c.count.Load()) }

// Peers returns where the other live servers are, as last listed, of those that say it.
// It waits until leases could be listed, and fails if ctx ends before.
func (c *Controller) Peers(ctx context.Context) ([]netip.AddrPort, error) {
	select {
	case <-c.listed:
		return *c.peers.Load(), nil
	case <-ctx.Done():
		return nil, errUnlisted
	}
}

var errUnlisted = errors.New("the servers' leases could not be listed yet")

// Run renews and collects until ctx ends, then deletes the lease, within a
// bound, and returns. A failed operation is logged once and retried.
func (c *Controller) Run(ctx context.Context) {
	defer c.release(context.WithoutCancel(ctx))
	var due time.Time // the next renewal
	for ok := true; ok; ok = wait.For(ctx, min(time.Until(due), countInterval)) {
		if !time.Now().Before(due) {
			due = time.Now().Add(renewInterval)
			if !c.noted(ctx, "renew the server's lease", c.renew(ctx)) {
				due = time.Now().Add(retryInterval)
			}
		}
		c.noted(ctx, "list the servers' leases", c.collect(ctx, due))
	}
}

// noted logs a failure when it begins and when it ends, and reports whether
// there was none.
func (c *Controller) noted(ctx context.Context, what string, err error) bool {
	switch {
	case err == nil:
		if c.failing[what] {
			c.cfg.Log.Infof("can %s again", what)
		}
		delete(c.failing, what)
		return true
	case ctx.Err() != nil:
	case !c.failing[what]:
		c.failing[what] = true
		c.cfg.Log.WithError(err).Warnf("cannot %s; retrying until it works", what)
	}
	return false
}

// renew creates the lease or writes a new time into it.
func (c *Controller) renew(ctx context.Context) error {
	if c.own == nil {
		found, err := call(ctx, c.cfg.Leases.Get, c.name)
		switch {
		case kubeapi.ReasonOf(err) == kubeapi.NotFound:
			return c.create(ctx)
		case err != nil:
			return err
		}
		c.own = found
	}
	lease := *c.own // whose maps are written to: it is not used again
	c.fill(&lease)
	updated, err := call(ctx, func(ctx context.Context, lease *kubeapi.Lease) (*kubeapi.Lease, error) {
		return c.cfg.Leases.Update(ctx, lease)
	}, &lease)
	if err != nil {
		c.own = nil // it was changed or deleted: read it again
		if kubeapi.ReasonOf(err) == kubeapi.Conflict {
			err = fmt.Errorf("another process writes it, perhaps a server with the same --server-id: %w", err)
		}
		return err
	}
	c.own = updated
	return nil
}

func (c *Controller) create(ctx context.Context) error {
	lease := new(kubeapi.Lease)
	lease.Name = c.name
	c.fill(lease)
	created, err := call(ctx, c.cfg.Leases.Create, lease)
	if err == nil {
		c.own = created
	}
	return err
}

// fill makes lease state that this server is alive now.
func (c *Controller) fill(lease *kubeapi.Lease) {
	now, seconds := kubeapi.MicroTime{Time: time.Now()}, int32(kubeapi.LeaseDuration/time.Second)
	if lease.Labels == nil {
		lease.Labels = make(map[string]string)
	}
	maps.Copy(lease.Labels, c.cfg.Labels)
	delete(lease.Annotations, PeerAnnotation)
	if c.cfg.Peer.IsValid() {
		if lease.Annotations == nil {
			lease.Annotations = make(map[string]string)
		}
		lease.Annotations[PeerAnnotation] = c.cfg.Peer.String()
	}
	if h := lease.Spec.HolderIdentity; h == nil || *h != c.cfg.ServerID {
		lease.Spec.HolderIdentity = &c.cfg.ServerID
		lease.Spec.AcquireTime = &now
	}
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &now
}

// release deletes the lease, so that agents stop looking for this server at
// once.
func (c *Controller) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.cfg.Leases.Delete(ctx, c.name, "")
	if err != nil && kubeapi.ReasonOf(err) != kubeapi.NotFound {
		c.cfg.Log.WithError(err).Warn("cannot delete the server's lease; it will expire by itself")
	}
}

// call asks the API within callTimeout.
func call[Ask, T any](ctx context.Context, f func(context.Context, Ask) (T, error), ask Ask) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx, ask)
}

// statusOf returns the HTTP status and reason of a call; ok is false if there
// was no HTTP response.
func statusOf(err error) (code int, reason string, ok bool) {
	if err == nil {
		return 200, "", true
	}
	if refused, ok := errors.AsType[*kubeapi.Error](err); ok {
		return refused.Code, refused.Reason, true
	}
	return 0, "", false
}
