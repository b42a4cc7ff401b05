package server

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

// dialer is how a cluster's clients reach its agents. All that may refuse a dial or
// hold it up is asked here, one after the other, under the Forwarder: so a refusal is
// counted and told like any dial that failed.
type dialer struct {
	cluster *cluster
	settle  settling
	agents  tunnel.Dialer
}

// newDialer makes the cluster's; it waits for the first agent from now on.
func (cl *cluster) newDialer() *dialer {
	s := cl.server
	return &dialer{cl, settling{cl.agents.Joined(), time.Now().Add(s.opts.Settle), s.drains.Done()}, cl.ends.Dialer(cl.agents)}
}

// Dial implements tunnel.Dialer.
func (d *dialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	cl := d.cluster
	if cl.name == "" {
		return d.dial(ctx, f)
	}
	perSecond, err := cl.bound(f)
	if err != nil {
		return nil, err
	}
	far, err := d.dial(ctx, f)
	cl.bounds.answered(f, err, perSecond, time.Now())
	return far, err
}

// dial is Dial within a tenant's bounds.
func (d *dialer) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	cl := d.cluster
	if err := cl.permit(f); err != nil {
		return nil, err
	}
	done, err := cl.server.share(ctx, f)
	if err != nil {
		return nil, err
	}
	defer done()
	cl.server.metrics.Dialing(1)
	defer cl.server.metrics.Dialing(-1)
	d.settle.wait(ctx)
	return d.agents.Dial(ctx, f)
}
