package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"konnectivity/adapters/uplink"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
	"konnectivity/tunnel/link"
)

// throughProxy has way reach the server through the proxy at u; nil: there is none.
func throughProxy(way *uplink.Options, u *url.URL) error {
	if u == nil {
		return nil
	}
	proxy, err := connect.NewProxy(u)
	if err != nil {
		return fmt.Errorf("client: Options.Proxy: %w", err)
	}
	secure := &tls.Config{ServerName: proxy.Host, MinVersion: tls.VersionTLS12}
	server := way.Address
	// The proxy looks the name up: here one address stands for all that are behind it.
	way.Lookup = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{netip.IPv4Unspecified()}, nil }
	way.Path = new(link.Path)
	way.DialTCP = func(ctx context.Context, by *net.Dialer, _ string) (net.Conn, error) {
		c, err := (&connect.Dialer{Proxy: proxy, Via: tunnel.DialerBy(by), TLS: secure, Secure: way.Path.Secure}).Dial(ctx, tunnel.NewFlow("tcp", server))
		if err != nil {
			return nil, proxyError(err)
		}
		return c, nil
	}
	return nil
}

// proxyError says that it is the proxy that does not work.
func proxyError(err error) error {
	reason := "the proxy on the way to the konnectivity server cannot be reached"
	if refusal, ok := errors.AsType[*connect.StatusError](err); ok {
		reason = fmt.Sprintf("the proxy on the way to the konnectivity server answered %d", refusal.Status)
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Reason: reason, Err: err}
}
