package connect

import (
	"context"
	"crypto/tls"

	"konnectivity/tunnel"
)

// Dialer is a tunnel.Dialer by CONNECT through one proxy. Only its context
// bounds a dial.
type Dialer struct {
	Proxy *Proxy
	Via   tunnel.Dialer // reaches the proxy
	TLS   *tls.Config   // for a Proxy with TLS: verifies Proxy.Host

	// Secure makes the handshake with a Proxy with TLS; nil: the connection does.
	Secure func(ctx context.Context, conn *tls.Conn) error
}

// ReachError says that a proxy could not be asked: no connection to it came
// about, or no TLS on it.
type ReachError struct{ Err error }

func (e *ReachError) Error() string { return "reach the proxy: " + e.Err.Error() }

func (e *ReachError) Unwrap() error { return e.Err }

// Dial implements tunnel.Dialer. Its errors are for its caller to explain: a
// *ReachError, or one of Handshake's.
func (d *Dialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := d.reach(ctx, f)
	if err != nil {
		return nil, &ReachError{err}
	}
	return Handshake(ctx, c, Request{Address: f.Address, ID: f.ID, Authorization: d.Proxy.auth})
}

// reach connects to the proxy.
func (d *Dialer) reach(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	leg := f.To(d.Proxy.Address)
	c, err := d.Via.Dial(ctx, leg)
	f.TakeResult(leg)
	if err != nil || !d.Proxy.TLS {
		return c, err
	}
	conn, secure := tls.Client(c, d.TLS), d.Secure
	if secure == nil {
		secure = func(ctx context.Context, conn *tls.Conn) error { return conn.HandshakeContext(ctx) }
	}
	if err := secure(ctx, conn); err != nil {
		_ = c.Reset(err)
		return nil, err
	}
	return tunnel.Wrap(conn), nil
}
