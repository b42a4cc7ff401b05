package server

import (
	"context"

	"konnectivity/tunnel"
)

// policed lets next dial only what the operator allows. Names are judged as
// names here; their addresses are the agent's to judge, which resolves them.
func (s *Server) policed(next tunnel.Dialer) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		host, port, err := tunnel.SplitAddress(f.Address)
		if err != nil {
			return nil, err
		}
		if err := s.opts.Policy.AllowUnresolved(host, port); err != nil {
			s.opts.Log.WithError(err).WithField("id", f.ID).WithField("address", f.Address).
				Warn("a destination was refused by policy")
			return nil, err
		}
		return next.Dial(ctx, f)
	})
}
