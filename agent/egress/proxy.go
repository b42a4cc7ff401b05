package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"konnectivity/tunnel"
)

// maxProxyAnswer bounds the header of a proxy's answer to CONNECT; http.Server
// grants as much to requests.
const maxProxyAnswer = 64 << 10

// proxyFor returns the proxy for a destination, or nil for none.
func (d *Dialer) proxyFor(host string, port uint16) (*url.URL, error) {
	if d.opts.Proxy == nil {
		return nil, nil
	}
	// NO_PROXY entries never end in a dot, so a name must not either.
	target := tunnel.JoinAddress(strings.TrimSuffix(host, "."), port)
	proxy, err := d.opts.Proxy(&url.URL{Scheme: "https", Host: target})
	if err != nil {
		return nil, unavailable("the proxy set in the environment is no valid URL", nil)
	}
	return proxy, nil
}

// DialProxy connects to address, host:port, through an HTTP proxy by CONNECT
// (RFC 9110 §9.3.6). The proxy's URL is http or https; a user and password in it
// become Basic credentials. It blocks until the proxy has answered or ctx ends.
// The error is a *tunnel.DialError without anything secret: FailUnavailable when
// the proxy itself cannot be reached, FailAuth when it wants other credentials.
func DialProxy(ctx context.Context, proxy *url.URL, address string) (tunnel.Conn, error) {
	conn, err := reachProxy(ctx, proxy)
	if err != nil {
		if ctx.Err() != nil {
			return nil, tunnel.AsDialError(address, ctx.Err())
		}
		return nil, unavailable("the proxy on the way cannot be reached", fmt.Errorf("proxy %s: %w", proxy.Host, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	head, err := askProxy(conn, proxy, address)
	if !stop() || err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = tunnel.AsDialError(address, ctx.Err())
		}
		return nil, err
	}
	return tunnel.Unread(conn, head), nil
}

func reachProxy(ctx context.Context, proxy *url.URL) (tunnel.Conn, error) {
	port, spoken := map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	if !spoken {
		return nil, errors.New("its scheme is neither http nor https")
	}
	if proxy.Port() != "" {
		port = proxy.Port()
	}
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil || proxy.Scheme == "http" {
		return wrapped(raw, err)
	}
	secure := tls.Client(tunnel.Wrap(raw), &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return tunnel.Wrap(secure), nil
}

func wrapped(raw net.Conn, err error) (tunnel.Conn, error) {
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(raw), nil
}

// askProxy sends CONNECT and reads the answer. It returns what the destination
// said right behind it.
func askProxy(conn tunnel.Conn, proxy *url.URL, address string) ([]byte, error) {
	request := "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n"
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		request += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		return nil, unavailable("the proxy closed the connection", err)
	}
	limited := &io.LimitedReader{R: conn, N: maxProxyAnswer}
	reader := bufio.NewReader(limited)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, unavailable("the proxy gave no valid answer", err)
	}
	if response.StatusCode/100 != 2 {
		return nil, refusal(response.StatusCode)
	}
	head, _ := reader.Peek(reader.Buffered())
	return head, nil
}

// refusal says what a proxy's status means for the dial.
func refusal(status int) error {
	failure := tunnel.FailInternal
	switch status {
	case http.StatusProxyAuthRequired:
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
