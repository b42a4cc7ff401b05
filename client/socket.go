package client

import (
	"context"
	"errors"
	"net"

	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// socket asks by CONNECT over a unix socket, with a connection for each dial.
type socket struct{ path, name string }

// Dial implements tunnel.Dialer.
func (s *socket) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if err := f.CheckTCP(); err != nil {
		return nil, err
	}
	raw, err := new(net.Dialer).DialContext(ctx, "unix", s.path)
	if err != nil {
		return nil, s.unavailable(ctx, f, err)
	}
	far, err := connect.Handshake(ctx, tunnel.Wrap(raw), connect.Request{Address: f.Address, ID: f.ID, UserAgent: s.name})
	if refusal, ok := errors.AsType[*connect.StatusError](err); ok {
		return nil, &tunnel.DialError{Failure: connect.ServerFailure(refusal), Address: f.Address, Err: err}
	}
	if err != nil {
		return nil, s.unavailable(ctx, f, err)
	}
	return tunnel.To(far, f), nil
}

// unavailable is the error where the socket gives no answer, unless that is ctx's fault.
func (s *socket) unavailable(ctx context.Context, f *tunnel.Flow, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "the socket of the konnectivity server cannot be used", Err: err}
}
