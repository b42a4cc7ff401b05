package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpproxy"

	"konnectivity/internal/pki"
	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// fakeProxy answers each connection with answer, given the request; a true
// second result means to echo afterwards.
func fakeProxy(t *testing.T, config *tls.Config, answer func(*http.Request) (string, bool)) string {
	t.Helper()
	return testutil.Serve(t, func(raw *net.TCPConn) {
		c := net.Conn(raw)
		if config != nil {
			c = tls.Server(raw, config)
		}
		reader := bufio.NewReader(c)
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		text, echo := answer(request)
		_, _ = io.WriteString(c, text)
		if echo {
			_, _ = io.Copy(c, reader)
		}
	})
}

// by is a Dialer to which a proxy leads everywhere.
func by(proxy url.URL) *Dialer {
	return New(Options{Proxy: func(*url.URL) (*url.URL, error) { return &proxy, nil }})
}

const established = "HTTP/1.1 200 Connection Established\r\n\r\n"

func TestProxy(t *testing.T) {
	addr := fakeProxy(t, nil, func(r *http.Request) (string, bool) {
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:s3cret"))
		if r.Method != "CONNECT" || r.Host != "dest.example:443" || r.Header.Get("Proxy-Authorization") != want {
			return "HTTP/1.1 400 Bad Request\r\n\r\n", false
		}
		return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + established + "early ", true
	})
	config := &httpproxy.Config{HTTPSProxy: "http://me:s3cret@" + addr, NoProxy: "127.0.0.0/8,.direct.example"}
	d := New(Options{Proxy: config.ProxyFunc(), resolver: names{"a.direct.example": {"127.0.0.1"}}})

	c := testutil.Must(dial(t, d, "dest.example:443"))(t)
	defer c.Close()
	_, _ = io.WriteString(c, "hello")
	_ = c.CloseWrite()
	testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), "early hello", "what comes back")

	port := echo(t, "127.0.0.1", 0)
	for _, host := range []string{"127.0.0.1", "a.direct.example", "a.direct.example."} {
		d.opts.resolver = names{"a.direct.example": {"127.0.0.1"}, "a.direct.example.": {"127.0.0.1"}}
		c, err := dial(t, d, fmt.Sprintf("%s:%d", host, port))
		testutil.Requires(t, err == nil, "NO_PROXY for %s: %v", host, err)
		wantEcho(t, c)
	}
}

func TestProxyRefusals(t *testing.T) {
	for status, want := range map[int]tunnel.Failure{
		407: tunnel.FailAuth, 401: tunnel.FailAuth, 403: tunnel.FailDenied, 502: tunnel.FailHostUnreach, 503: tunnel.FailUnavailable, 504: tunnel.FailTimeout, 500: tunnel.FailInternal, 301: tunnel.FailInternal,
	} {
		addr := fakeProxy(t, nil, func(*http.Request) (string, bool) { return fmt.Sprintf("HTTP/1.1 %d Nope\r\n\r\n", status), false })
		_, err := dial(t, by(url.URL{Scheme: "http", Host: addr}), "dest.example:443")
		wantFailure(t, err, want)
	}
}

func TestProxyThatMisbehaves(t *testing.T) {
	secret := "hunter2"
	proxyAt := func(addr string) *Dialer {
		return by(url.URL{Scheme: "http", Host: addr, User: url.UserPassword("me", secret)})
	}
	for name, answer := range map[string]string{
		"garbage":     "what?\r\n\r\n",
		"nothing":     "",
		"huge":        "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 128<<10) + "\r\n\r\n",
		"half a line": "HTTP/1.1 20",
	} {
		addr := fakeProxy(t, nil, func(*http.Request) (string, bool) { return answer, false })
		_, err := dial(t, proxyAt(addr), "dest.example:443")
		testutil.Requires(t, err != nil, "%s was taken for an answer", name)
		wantFailure(t, err, tunnel.FailUnavailable)
		testutil.Holds(t, !strings.Contains(err.Error(), secret), "the error tells the password: %v", err)
	}
	_, err := dial(t, proxyAt(testutil.Refusing(t)), "dest.example:443")
	wantFailure(t, err, tunnel.FailUnavailable)
	testutil.Holds(t, !strings.Contains(err.Error(), secret), "the error tells the password: %v", err)

	for _, host := range []string{"127.0.0.1", testutil.Refusing(t)} {
		_, err = dial(t, by(url.URL{Scheme: "socks5", Host: host}), "dest.example:443")
		wantFailure(t, err, tunnel.FailUnavailable)
		testutil.Contains(t, err.Error(), "neither http nor https", "a SOCKS proxy: %v", err)
	}
}

func TestSilentProxy(t *testing.T) {
	d := by(url.URL{Scheme: "http", Host: testutil.Listen(t).Addr().String()})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := d.Dial(ctx, tunnel.NewFlow("tcp", "dest.example:443"))
	wantFailure(t, err, tunnel.FailTimeout)
}

// The proxy must not be a way around the policy: names are judged by name, and
// an allow list by address cannot vouch for a name that the proxy resolves.
func TestProxyAndPolicy(t *testing.T) {
	addr := fakeProxy(t, nil, func(*http.Request) (string, bool) { return established, true })
	u := &url.URL{Scheme: "http", Host: addr}
	rules := testutil.Must(policy.Parse([]string{"10.0.0.0/8", "ok.example"}, []string{"10.1.0.0/16"}))(t)
	d := New(Options{Policy: rules, Proxy: func(*url.URL) (*url.URL, error) { return u, nil }})
	for address, allowed := range map[string]bool{"ok.example:443": true, "10.0.0.1:443": true, "10.1.0.1:443": false, "other.example:443": false, "169.254.169.254:80": false} {
		c, err := dial(t, d, address)
		if allowed {
			testutil.Requires(t, err == nil, "%s: %v", address, err)
			wantEcho(t, c)
		} else {
			wantFailure(t, err, tunnel.FailDenied)
		}
	}
}

func TestHTTPSProxyIsVerified(t *testing.T) {
	ca := testutil.Must(pki.NewCA("nobody trusts this"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "proxy", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	addr := fakeProxy(t, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}, func(*http.Request) (string, bool) { return established, true })
	_, err := dial(t, by(url.URL{Scheme: "https", Host: addr}), "dest.example:443")
	wantFailure(t, err, tunnel.FailUnavailable)
}
