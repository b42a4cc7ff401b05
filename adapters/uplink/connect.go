package uplink

import (
	"context"
	"errors"

	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// request asks for f.Address by HTTP CONNECT on h, which it takes over.
func (c *connector) request(ctx context.Context, h handshaken, f *tunnel.Flow) (tunnel.Conn, error) {
	address := f.Address
	far, err := connect.Handshake(ctx, tunnel.Wrap(h.Conn), connect.Request{Address: address, ID: f.ID, UserAgent: c.opt.Software})
	if err == nil {
		c.health.note(nil)
		return far, nil
	}
	var status *connect.StatusError
	var typed *tunnel.DialError
	switch {
	case errors.As(err, &typed):
		return nil, err
	case errors.As(err, &status):
		c.health.note(nil)
		return nil, &tunnel.DialError{Failure: connect.ServerFailure(status), Address: address, Err: err}
	case ctx.Err() != nil:
		return nil, tunnel.AsDialError(address, err)
	default:
		c.health.note(err)
		return nil, unavailable(address, err)
	}
}
