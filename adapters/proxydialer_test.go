package adapters

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

func TestNoProxy(t *testing.T) {
	for list, c := range map[string]struct{ exempt, not string }{
		"":                       {"localhost:1 LOCALHOST:1 localhost.:80 127.0.0.1:80 [::1]:80 [::ffff:127.0.0.1]:80", "example.com:80 10.0.0.1:80"},
		"example.com":            {"example.com:80 www.example.com:443 EXAMPLE.com.:80 a.b.Example.Com:1", "notexample.com:80 example.org:80"},
		".example.com":           {"www.example.com:80 www.example.com.:80", "example.com:80"},
		"*.example.com.":         {"www.example.com:80", "example.com:80 wwwexample.com:80"},
		"EXAMPLE.com.":           {"example.com:80", "example.org:80"},
		"example.com:8080":       {"example.com:8080 www.example.com:8080", "example.com:80"},
		"*":                      {"anything:1 10.0.0.1:80 [2001:db8::1]:80", ""},
		"10.0.0.0/8":             {"10.1.2.3:80 [::ffff:10.1.2.3]:80", "11.0.0.1:80 name-in-10.example:80"},
		"2001:db8::/32":          {"[2001:db8:1::5]:443", "[2001:db9::1]:443"},
		"10.0.0.1":               {"10.0.0.1:80 10.0.0.1:443", "10.0.0.2:80"},
		"10.0.0.1:443":           {"10.0.0.1:443", "10.0.0.1:80"},
		"[2001:db8::1]":          {"[2001:db8::1]:80 [2001:DB8:0::1]:80", "[2001:db8::2]:80"},
		"[2001:db8::1]:443":      {"[2001:db8::1]:443", "[2001:db8::1]:80"},
		"2001:db8:0:0::1":        {"[2001:db8::1]:80", "[2001:db8::2]:80"},
		"a.example, b.example":   {"a.example:1 b.example:1", "c.example:1"},
		"a.example\tb.example\n": {"a.example:1 b.example:1", "c.example:1"},
		",, ,:80,[],.,*.,/":      {"localhost:1", "example.com:80 10.0.0.1:80"},
		"bücher.example":         {"bücher.example:80 xn--bcher-kva.example:80", "bucher.example:80"},
	} {
		n := newExemptions(list)
		for _, address := range strings.Fields(c.exempt) {
			host, port, err := tunnel.SplitAddress(address)
			testutil.Holds(t, err == nil && n.exempts(host, port), "%q does not exempt %s, %v", list, address, err)
		}
		for _, address := range strings.Fields(c.not) {
			host, port, err := tunnel.SplitAddress(address)
			testutil.Holds(t, err == nil && !n.exempts(host, port), "%q exempts %s, %v", list, address, err)
		}
	}
}

func FuzzNoProxy(f *testing.F) {
	for _, s := range []string{"example.com", "*.a,.b:80", "10.0.0.0/8", "[::1]:1", "*", ":", "[", "]:", "a b\tc"} {
		f.Add(s, "www.example.com", uint16(443))
	}
	f.Fuzz(func(t *testing.T, list, host string, port uint16) {
		if !tunnel.ValidHost(host) || port == 0 {
			return
		}
		n := newExemptions(list)
		testutil.Holds(t, n.exempts(host, port) == n.exempts(strings.ToUpper(strings.ToLower(host)), port) || !isASCII(host),
			"%q: case counts in %q", list, host)
		if !strings.HasSuffix(host, ".") && tidyHost(host) == strings.ToLower(host) && n.exempts(host, port) != n.exempts(host+".", port) {
			t.Errorf("%q: a final dot counts in %q", list, host)
		}
		testutil.Equal(t, newExemptions(list+",*").exempts(host, port), true, "%q and * exempt %q", list, host)
	})
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// tcp is a Dialer that finds every name at one address.
func tcp(real string) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, f.Network, real)
		if err != nil {
			return nil, tunnel.AsDialError(f.Address, err)
		}
		return tunnel.Wrap(c), nil
	})
}

// deadline is a context that ends when the test says so, and not sooner on a busy
// machine.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// mute hears all and says nothing.
func mute(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestProxyDialerFailures(t *testing.T) {
	ca, _ := pki.NewCA("customer")
	stranger, _ := pki.NewCA("stranger")
	issue := func(ca *pki.CA) *tls.Config {
		pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "proxy", DNS: []string{"other.example"}, Server: true}))(t)
		return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	}
	serverTLS, strangerTLS := issue(ca), issue(stranger)
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, text)
		}
	}
	reset := func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	const wantsAuth = "customer proxy wants authentication: give user and password in its URL, or others than are there, for Basic authentication"
	closed := testutil.Refusing(t)
	for name, c := range map[string]struct {
		url     string
		proxy   *customer
		failure tunnel.Failure
		reason  string
	}{
		"wants auth":     {"http://p:1", &customer{auth: "Basic x"}, tunnel.FailAuth, wantsAuth},
		"wrong auth":     {"http://u:hunter2@p:1", &customer{auth: "Basic x"}, tunnel.FailAuth, wantsAuth},
		"forbidden":      {"http://p:1", &customer{script: says("HTTP/1.1 403 No\r\n\r\nhunter2")}, tunnel.FailDenied, "customer proxy answered 403"},
		"unavailable":    {"http://p:1", &customer{script: says("HTTP/1.1 503 No\r\n\r\nconnection refused")}, tunnel.FailUnavailable, "customer proxy answered 503"},
		"Squid":          {"http://p:1", &customer{script: says("HTTP/1.1 503 No\r\nX-Squid-Error: ERR_CONNECT_FAIL 111\r\n\r\n")}, tunnel.FailUnavailable, "customer proxy answered 503 (ERR_CONNECT_FAIL 111)"},
		"HTML":           {"http://p:1", &customer{script: says("<html>\n<body>\n\n")}, tunnel.FailUnavailable, "customer proxy does not speak HTTP"},
		"hangs up":       {"http://p:1", &customer{script: says("")}, tunnel.FailUnavailable, "customer proxy hung up"},
		"resets":         {"http://p:1", &customer{script: reset}, tunnel.FailUnavailable, "customer proxy hung up"},
		"silent":         {"http://p:1", &customer{}, tunnel.FailTimeout, "customer proxy does not answer in time"},
		"silent TLS":     {"https://p:1", &customer{}, tunnel.FailTimeout, "customer proxy does not answer in time"},
		"10 MB headers":  {"http://p:1", &customer{script: says("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 10<<20))}, tunnel.FailUnavailable, "customer proxy does not speak HTTP"},
		"other name":     {"https://proxy.example:1", &customer{tls: serverTLS}, tunnel.FailUnavailable, "customer proxy: its certificate is not for proxy.example but for other.example"},
		"other CA":       {"https://other.example:1", &customer{tls: strangerTLS}, tunnel.FailUnavailable, `customer proxy: its certificate was issued by "CN=stranger", which is not in the system's CAs or --proxy-ca-cert-path`},
		"plain, not TLS": {"https://proxy.example:1", &customer{script: func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); mute(c) }}, tunnel.FailUnavailable, "customer proxy does not speak TLS; its URL may have to begin with http://"},
		"refused":        {"http://p:1", nil, tunnel.FailRefused, "customer proxy: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			p := testutil.Must(connect.ParseProxy(c.url))(t)
			real, over := closed, make(chan struct{})
			if c.failure == tunnel.FailTimeout {
				c.proxy.script = func(c net.Conn) {
					_, _ = c.Read(make([]byte, 1)) // it was asked
					close(over)
					mute(c)
				}
			}
			if c.proxy != nil {
				real = c.proxy.start(t)
			}
			w := &proxyDialer{connect.Dialer{Proxy: p, Via: tcp(real), TLS: &tls.Config{RootCAs: ca.Pool(), ServerName: p.Host}}, "customer proxy"}
			ctx := testutil.Context(t)
			if c.failure == tunnel.FailTimeout {
				ctx = deadline{ctx, over}
			}
			_, err := w.Dial(ctx, tunnel.NewFlow("tcp", "www.example:443"))
			var typed *tunnel.DialError
			testutil.Holds(t, errors.As(err, &typed) && typed.Failure == c.failure && typed.Text() == c.reason,
				"%v, want %v %q", err, c.failure, c.reason)
			testutil.Holds(t, err == nil || !strings.Contains(err.Error(), "hunter2"), "a secret in %q", err)
			testutil.Equal(t, c.failure == tunnel.FailTimeout || ctx.Err() == nil, true, "it was in time")
		})
	}
}

func TestProxyDialerCancelled(t *testing.T) {
	p, _ := connect.ParseProxy("http://p:1")
	w := &proxyDialer{connect.Dialer{Proxy: p, Via: tcp((&customer{script: mute}).start(t))}, "customer proxy"}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	err := testutil.Err(w.Dial(ctx, tunnel.NewFlow("tcp", "x:1")))
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailCancelled, "given up")
	err = testutil.Err(w.Dial(t.Context(), tunnel.NewFlow("tcp", "no-port")))
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailBadAddress, "without a port")
}
