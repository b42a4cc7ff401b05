package server

import (
	"cmp"
	"context"

	"konnectivity/server/auth"
	"konnectivity/server/limits"
	"konnectivity/tunnel"
)

// dialer is how a cluster's clients reach its agents. All that may refuse a dial or
// hold it up is asked here, one after the other, under the Forwarder: so a refusal is
// counted and told like any dial that failed.
type dialer struct {
	cluster *cluster
	bounds  *limits.Gate
	permit  func(*tunnel.Flow) error
	access  *auth.Access // nil: permit alone refuses
	next    tunnel.Dialer
}

func (cl *cluster) newDialer() *dialer {
	return &dialer{cl, &cl.limits.Clients, cl.permit, cl.server.access, cl.ends.Dialer(cl.agents)}
}

// Dial implements tunnel.Dialer. Bounds come before rules: a dial that these refuse costs the
// server a look-up, a line of the log and a record, and perhaps a call of an API.
func (d *dialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	answered, err := d.bounds.Admit(f)
	if err != nil {
		return nil, err
	}
	far, err := d.dial(ctx, f)
	answered(err)
	return far, err
}

// dial is Dial within a tenant's bounds.
func (d *dialer) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	cl := d.cluster
	if err := d.permit(f); err != nil {
		return nil, err
	}
	done, err := cl.limits.Start(ctx, f)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := d.review(ctx, f); err != nil {
		return nil, err
	}
	cl.startup.asked()
	return d.next.Dial(ctx, f)
}

// review asks the Kubernetes API about a new connection, where that has a say. One that is
// resumed has been allowed before, and goes on where it was.
func (d *dialer) review(ctx context.Context, f *tunnel.Flow) error {
	if d.access == nil || f.Resume.Again() {
		return nil
	}
	host, port, err := tunnel.SplitAddress(f.Address)
	if err == nil {
		err = d.access.Allow(ctx, f.Who(), f.Source, host, port)
	}
	switch {
	case tunnel.FailureOf(err) == tunnel.FailCancelled: // by the client, and not refused
		return err
	case err != nil:
		d.cluster.log.WithError(err).WithField("id", f.ID).WithField("address", f.Address).Warn("a destination was refused by access review")
		return err
	}
	f.Rule = cmp.Or(f.Rule, accessRule)
	return nil
}

// accessRule is what the audit log has as the rule where none of a file allowed a connection.
const accessRule = "SubjectAccessReview"

// permit is an error unless a destination is allowed. Here names are judged as names. The
// agent, which resolves them, judges their addresses by its own rules and by f.Rules.
func (cl *cluster) permit(f *tunnel.Flow) error {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return err
	}
	if err = cl.allows(host, port); err == nil {
		f.Rules, err = cl.server.opts.PolicyFile.Server(f, host, port)
	}
	if own := cl.spec().PolicyFile; err == nil && own != nil {
		f.Rules, err = own.Also(f, host, port, f.Rules)
	}
	if err != nil {
		cl.log.WithError(err).WithField("id", f.ID).WithField("address", f.Address).
			Warn("a destination was refused by policy")
	}
	return err
}

// allows is an error unless the operator's flags and the cluster's own rules allow a
// destination to all.
func (cl *cluster) allows(host string, port uint16) error {
	err := cl.server.opts.Policy.AllowUnresolved(host, port)
	if own := cl.spec().Policy; err == nil && own != nil {
		err = own.AllowUnresolved(host, port)
	}
	return err
}
