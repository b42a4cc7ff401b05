package server

import (
	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

// permit is an error unless the operator and the cluster's own rules allow a
// destination. Here names are judged as names; the agent, which resolves them, judges
// their addresses.
func (cl *cluster) permit(f *tunnel.Flow) error {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return err
	}
	err = allow(host, port, cl.server.opts.Policy, cl.terms.Load().policy)
	if err != nil {
		cl.log.WithError(err).WithField("id", f.ID).WithField("address", f.Address).
			Warn("a destination was refused by policy")
	}
	return err
}

// allow returns why a destination is refused: by the server's rules, or by a
// cluster's; own is nil where it has none.
func allow(host string, port uint16, all, own *policy.Policy) error {
	if err := all.AllowUnresolved(host, port); err != nil || own == nil {
		return err
	}
	return own.AllowUnresolved(host, port)
}
