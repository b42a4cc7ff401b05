package server

import (
	"context"

	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

// policed lets next dial only what the operator and the cluster's own rules
// allow. Here names are judged as names; the agent, which resolves them, judges
// their addresses.
func (cl *cluster) policed(next tunnel.Dialer) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		host, port, err := tunnel.SplitAddress(f.Address)
		if err != nil {
			return nil, err
		}
		if err := allow(host, port, cl.server.opts.Policy, cl.terms.Load().policy); err != nil {
			cl.log.WithError(err).WithField("id", f.ID).WithField("address", f.Address).
				Warn("a destination was refused by policy")
			return nil, err
		}
		return next.Dial(ctx, f)
	})
}

// allow returns why a destination is refused: by the server's rules, or by a
// cluster's; own is nil where it has none.
func allow(host string, port uint16, all, own *policy.Policy) error {
	if err := all.AllowUnresolved(host, port); err != nil || own == nil {
		return err
	}
	return own.AllowUnresolved(host, port)
}
