package lease

import (
	"context"
	"net/netip"
	"time"

	"konnectivity/internal/kubeapi"
)

// collect lists the servers' leases, counts the live ones and deletes those
// that ran out, as far as there is time until the next renewal: there may be
// hundreds of them, and to delete one may take long.
func (c *Controller) collect(ctx context.Context, until time.Time) error {
	start := time.Now()
	list, err := call(ctx, c.cfg.Leases.List, kubeapi.ListOptions{Labels: c.selector})
	if code, reason, ok := statusOf(err); ok {
		c.cfg.Metrics.LeaseListed(code, reason, time.Since(start))
	}
	if err != nil {
		return err
	}
	live, peers, expired := c.sort(list.Items, time.Now())
	if c.peers.Swap(&peers) == nil {
		close(c.listed)
	}
	if old := c.count.Swap(int64(live)); old != int64(live) {
		c.cfg.Changed(live)
	}
	if len(expired) > 0 && time.Now().Before(until) { // else nothing is tried
		c.noted(ctx, "delete the leases of servers that are gone", c.cull(ctx, expired, until))
	}
	return nil
}

// cull deletes leases until then.
func (c *Controller) cull(ctx context.Context, expired []*kubeapi.Lease, until time.Time) (failed error) {
	for _, lease := range expired {
		if !time.Now().Before(until) {
			break // the next collection finds the rest
		}
		if err := c.delete(ctx, lease); err != nil {
			failed = err
		}
	}
	return failed
}

// sort counts the servers, says where the others are, and finds the leases to delete.
// This server counts even while its lease cannot be renewed or was deleted, unless there
// are no leases at all: then the count is unknown.
func (c *Controller) sort(items []*kubeapi.Lease, now time.Time) (live int, peers []netip.AddrPort, expired []*kubeapi.Lease) {
	counted := false // this server
	c.seen.Look(items, now)
	for _, lease := range items {
		counted = counted || lease.Name == c.name
		switch there, over := c.seen.Judge(lease, now, now); {
		case lease.Name == c.name, there:
			live++
			if at, err := netip.ParseAddrPort(lease.Annotations[PeerAnnotation]); err == nil && lease.Name != c.name {
				peers = append(peers, at)
			}
		case over:
			expired = append(expired, lease)
		}
	}
	if live > 0 && !counted {
		live++
	}
	return live, peers, expired
}

// delete removes a lease unless it has changed since it was listed.
func (c *Controller) delete(ctx context.Context, lease *kubeapi.Lease) error {
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.cfg.Leases.Delete(bounded, lease.Name, lease.ResourceVersion)
	if code, reason, ok := statusOf(err); ok {
		c.cfg.Metrics.LeaseDeleted(code, reason, time.Since(start))
	}
	if err == nil {
		c.cfg.Metrics.LeaseCulled()
	}
	if reason := kubeapi.ReasonOf(err); reason == kubeapi.NotFound || reason == kubeapi.Conflict {
		return nil // another server was quicker, or its owner renewed it
	}
	return err
}
