package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
	"konnectivity/tunnel/link"
)

// ProxyFor asks proxyOf, which may be nil, for the proxy to a host; nil: none.
func ProxyFor(proxyOf func(*url.URL) (*url.URL, error), host string, port uint16) (*url.URL, error) {
	if proxyOf == nil {
		return nil, nil
	}
	// NO_PROXY entries never end in a dot, so a name must not either.
	return proxyOf(&url.URL{Scheme: "https", Host: tunnel.JoinAddress(strings.TrimSuffix(host, "."), port)})
}

// DialProxy connects by a dialer to address, host:port, through an HTTP proxy by CONNECT
// (RFC 9110 §9.3.6). The proxy's URL is http or https; a user and password in it become Basic
// credentials, and secure is connect.Dialer's for https. It blocks until the proxy has answered
// or ctx ends. The error is a *tunnel.DialError without anything secret: FailUnavailable when
// the proxy itself cannot be reached, FailAuth when it wants other credentials.
func DialProxy(ctx context.Context, proxy *url.URL, address string, by net.Dialer, secure func(context.Context, *tls.Conn) error) (tunnel.Conn, error) {
	p, err := connect.NewProxy(proxy)
	if err != nil {
		return nil, unreached(proxy, err)
	}
	d := connect.Dialer{Proxy: p, Via: tunnel.DialerBy(&by), Secure: secure, TLS: &tls.Config{
		ServerName: p.Host, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true,
	}}
	c, err := d.Dial(ctx, &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: address}}) // no id: it is our own business
	if err != nil {
		return nil, explainProxy(ctx, proxy, address, err)
	}
	return c, nil
}

// explainProxy says what kept us from a tunnel through a proxy.
func explainProxy(ctx context.Context, proxy *url.URL, address string, err error) error {
	var reach *connect.ReachError
	var status *connect.StatusError
	var unheard *link.UnheardError // says why ctx has ended
	switch {
	case ctx.Err() != nil && !errors.As(err, &unheard):
		return tunnel.AsDialError(address, ctx.Err())
	case errors.As(err, &reach):
		return unreached(proxy, reach.Err)
	case errors.As(err, &status):
		return refusal(status.Status)
	default:
		return unavailable("the proxy gave no valid answer", err)
	}
}

func unreached(proxy *url.URL, err error) error {
	return unavailable("the proxy on the way cannot be reached", fmt.Errorf("proxy %s: %w", proxy.Host, err))
}

// refusal says what a proxy's status means for the dial.
func refusal(status int) error {
	failure := tunnel.FailInternal
	switch status {
	case http.StatusProxyAuthRequired, http.StatusUnauthorized: // the latter is tinyproxy's, to a wrong password
		failure = tunnel.FailAuth
	case http.StatusForbidden, http.StatusMethodNotAllowed:
		failure = tunnel.FailDenied
	case http.StatusGatewayTimeout:
		failure = tunnel.FailTimeout
	case http.StatusBadGateway:
		failure = tunnel.FailHostUnreach
	case http.StatusServiceUnavailable:
		failure = tunnel.FailUnavailable
	}
	reason := fmt.Sprintf("the proxy answered %d", status)
	if failure == tunnel.FailAuth {
		reason += ": it wants a user and password, or others than those in its URL"
	}
	return &tunnel.DialError{Failure: failure, Reason: reason}
}

func unavailable(reason string, err error) error {
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Reason: reason, Err: err}
}
