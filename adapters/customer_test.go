package adapters

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func mustURL(t testing.TB, text string) *url.URL {
	t.Helper()
	return testutil.Must(url.Parse(text))(t)
}

// web answers every request with its name.
func web(t testing.TB, name string) string {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", name, r.RequestURI)
	})}
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return l.Addr().String()
}

// made is a connection of transport that knows how it was made.
type made struct {
	tunnel.Conn
	flow *tunnel.Flow
}

// NetConn is the connection below.
func (m *made) NetConn() net.Conn { return m.Conn }

// transport is the front's, with its dials.
func transport(a *Adapter) *http.Transport {
	tr := a.Transport()
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		f := tunnel.NewFlow(network, address)
		c, err := a.Forward().Dial(ctx, f)
		if err != nil {
			return nil, err
		}
		return &made{c, f}, nil
	}
	return tr
}

// fetches is reaches for a plain request.
func fetches(t testing.TB, tr *http.Transport, url, want string, route tunnel.Route) {
	t.Helper()
	got, trace := fetch(t, tr, url)
	testutil.Equal(t, got, want, "what comes from %s", url)
	testutil.Equal(t, trace.Route, route, "the route to %s", url)
}

// fetch makes a plain request and returns the body, or why not.
func fetch(t testing.TB, tr *http.Transport, url string) (string, *tunnel.Flow) {
	t.Helper()
	trace := new(tunnel.Flow)
	ctx := testutil.Context(t)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if c, ok := tunnel.Under[*made](i.Conn); ok {
			trace = c.flow
		}
	}})
	req := testutil.Must(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	res, err := tr.RoundTrip(req)
	if err != nil {
		return "!" + tunnel.FailureOf(err).Label(), trace
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	testutil.Succeeds(t, err, "the body")
	if res.StatusCode != http.StatusOK {
		return fmt.Sprint(res.StatusCode), trace
	}
	return string(body), trace
}

// TestCustomerProxyMatrix walks {http, https, both, neither} x {plain, TLS} x
// {no auth, Basic} x {the proxy by name, IPv4, IPv6}.
func TestCustomerProxyMatrix(t *testing.T) {
	for _, which := range []string{"", "http", "https", "both"} {
		for _, scheme := range []string{"http", "https"} {
			for _, user := range []string{"", "us:p%40ss@"} {
				for _, host := range []string{"proxy.example.com", "10.7.7.7", "[fd00::7]"} {
					if which == "" && (scheme == "https" || user != "" || host != "10.7.7.7") {
						continue
					}
					name := fmt.Sprint(which, " ", scheme, "://", user, host)
					t.Run(name, func(t *testing.T) {
						customerCase(t, which, scheme+"://"+user+host+":3128")
					})
				}
			}
		}
	}
}

func customerCase(t *testing.T, which, proxyURL string) {
	w := newWorld(t)
	u := mustURL(t, proxyURL)
	p := &customer{name: "customer"}
	if u.User != nil {
		p.auth = "Basic dXM6cEBzcw=="
	}
	if u.Scheme == "https" {
		var bundle string
		p.tls, bundle = customerTLS(t, "proxy.example.com", "10.7.7.7", "fd00::7")
		w.opt.HTTPS.CACertPaths = []string{bundle}
	}
	real := p.start(t)
	w.guest["proxy.example.com"] = ips("10.7.7.7")
	w.inside["10.7.7.7:3128"], w.inside["[fd00::7]:3128"] = real, real
	w.guest["www.example.com"], w.guest["exempt.example.com"] = ips("10.2.2.2"), ips("10.2.2.2")
	w.inside["10.2.2.2:443"], w.inside["10.2.2.2:80"] = target(t, "straight"), web(t, "straight")
	w.opt.HTTPS.NoProxy = "exempt.example.com"
	wantPlain, plainRoute := "straight /path", tunnel.RouteTunnel
	if which == "http" || which == "both" {
		w.opt.HTTPS.HTTPProxy = proxyURL
		wantPlain, plainRoute = "customer http://www.example.com/path", tunnel.RouteCustomer
	}
	wantConnect, connectRoute := "straight", tunnel.RouteTunnel
	if which == "https" || which == "both" {
		w.opt.HTTPS.HTTPSProxy = proxyURL
		wantConnect, connectRoute = "customer to www.example.com:443", tunnel.RouteCustomer
	}
	a := w.adapter()
	tr := transport(a)
	defer tr.CloseIdleConnections()
	reaches(t, a.Connect(), "www.example.com:443", wantConnect, connectRoute)
	if connectRoute == tunnel.RouteCustomer {
		for _, address := range []string{"10.1.1.1:22", "[2001:db8::1]:443"} {
			reaches(t, a.Connect(), address, "customer to "+address, connectRoute)
		}
	}
	fetches(t, tr, "http://www.example.com/path", wantPlain, plainRoute)
	reaches(t, a.Connect(), "exempt.example.com:443", "straight", tunnel.RouteTunnel)
	fetches(t, tr, "http://exempt.example.com/path", "straight /path", tunnel.RouteTunnel)
	testutil.Equal(t, len(w.direct), 0, "dials by the pod itself: %v", w.direct)
}

// TestNoProxyMatrix walks the spellings of no-proxy on both ways.
func TestNoProxyMatrix(t *testing.T) {
	w := newWorld(t)
	p := &customer{name: "customer"}
	w.inside["10.7.7.7:3128"] = p.start(t)
	straight, straightWeb := target(t, "straight"), web(t, "straight")
	for _, ip := range []string{"10.2.2.2", "[fd00::2]"} {
		w.inside[ip+":443"], w.inside[ip+":80"], w.inside[ip+":8080"] = straight, straightWeb, straightWeb
	}
	for _, name := range []string{"a.suffix.example", "exact.example", "sub.exact.example", "other.example", "port.example"} {
		w.guest[name] = ips("10.2.2.2")
	}
	w.opt.HTTPS = HTTPSOptions{HTTPProxy: "10.7.7.7:3128", HTTPSProxy: "10.7.7.7:3128"}
	for _, c := range []struct {
		noProxy  string
		host     string
		straight bool
	}{
		{"", "other.example", false}, {".suffix.example", "a.suffix.example", true}, {".suffix.example", "A.Suffix.Example.", true}, {"*.suffix.example", "a.suffix.example", true},
		{"exact.example", "exact.example", true}, {"exact.example", "sub.exact.example", true}, {"exact.example.", "exact.example", true}, {"exact.example", "other.example", false},
		{"10.2.0.0/16", "10.2.2.2", true}, {"10.3.0.0/16", "10.2.2.2", false}, {"10.2.0.0/16", "other.example", false}, {"fd00::/8", "[fd00::2]", true}, {"10.2.2.2", "10.2.2.2", true},
		{"[fd00::2]", "[fd00:0::2]", true}, {"*", "other.example", true}, {"*", "10.2.2.2", true}, {"other.example , exact.example", "exact.example", true},
	} {
		w.opt.HTTPS.NoProxy = c.noProxy
		a := w.adapter()
		tr := transport(a)
		gotConnect, _ := reached(t, a.Connect(), c.host+":443")
		gotPlain, _ := fetch(t, tr, "http://"+c.host+"/")
		tr.CloseIdleConnections()
		testutil.Holds(t, (gotConnect == "straight") == c.straight, "CONNECT with %q to %s: %q", c.noProxy, c.host, gotConnect)
		testutil.Holds(t, (gotPlain == "straight /") == c.straight, "plain with %q to %s: %q", c.noProxy, c.host, gotPlain)
	}
	w.opt.HTTPS.NoProxy = "port.example:8080"
	a := w.adapter()
	tr := transport(a)
	defer tr.CloseIdleConnections()
	fetches(t, tr, "http://port.example:8080/", "straight /", tunnel.RouteTunnel)
	fetches(t, tr, "http://port.example/", "customer http://port.example/", tunnel.RouteCustomer) // another port
}

func TestBypassAndCustomerProxy(t *testing.T) {
	w := furnished(t)
	w.outside["192.0.2.80:443"] = w.outside["192.0.2.80:80"]
	w.outside["192.0.2.80:80"] = web(t, "cloud direct")
	p := &customer{name: "customer"}
	w.inside["10.7.7.7:3128"] = p.start(t)
	w.guest["proxy.amazonaws.com"] = ips("10.7.7.7") // under a suffix, and yet through the tunnel
	w.opt.Direct.CloudAPIs = true
	w.opt.HTTPS = HTTPSOptions{HTTPProxy: "http://proxy.amazonaws.com:3128", HTTPSProxy: "http://proxy.amazonaws.com:3128"}
	a := w.adapter()
	tr := transport(a)
	defer tr.CloseIdleConnections()
	reaches(t, a.Connect(), "s3.amazonaws.com:443", "cloud direct", tunnel.RouteDirect)
	fetches(t, tr, "http://s3.amazonaws.com/", "cloud direct /", tunnel.RouteDirect)
	reaches(t, a.Connect(), "www.example.com:443", "customer to www.example.com:443", tunnel.RouteCustomer)
	fetches(t, tr, "http://www.example.com/", "customer http://www.example.com/", tunnel.RouteCustomer)
}

// Why a customer's proxy cannot be reached is told as its own fault. TestProxyDialerFailures
// has what one may answer.
func TestCustomerProxyFailures(t *testing.T) {
	w := newWorld(t)
	for proxy, c := range map[string]struct {
		failure tunnel.Failure
		reason  string
	}{
		"us:hunter2@10.7.7.9:3128":  {tunnel.FailRefused, "customer proxy: connection refused"},
		"us:hunter2@nowhere.x:3128": {tunnel.FailNoSuchHost, "customer proxy: no such host"},
	} {
		w.opt.HTTPS = HTTPSOptions{HTTPSProxy: proxy}
		_, err := w.adapter().Connect().Dial(t.Context(), tunnel.NewFlow("tcp", "www.example.com:443"))
		dial := tunnel.AsDialError("", err)
		testutil.Holds(t, dial != nil && dial.Failure == c.failure && dial.Text() == c.reason && !strings.Contains(err.Error(), "hunter2"),
			"%s: %v", proxy, err)
	}
	w.opt.HTTPS = HTTPSOptions{HTTPProxy: "10.7.7.9:3128"}
	tr := transport(w.adapter())
	defer tr.CloseIdleConnections()
	got, _ := fetch(t, tr, "http://www.example.com/")
	testutil.Equal(t, got, "!refused", "plain")
}

// The CA of a customer's proxy may be mounted later, or be replaced.
func TestCustomerCAIsFollowed(t *testing.T) {
	w := newWorld(t)
	p := &customer{name: "customer"}
	var bundle string
	p.tls, bundle = customerTLS(t, "proxy.example.com")
	later := bundle + ".later"
	w.guest["proxy.example.com"] = ips("10.7.7.7")
	w.inside["10.7.7.7:3128"] = p.start(t)
	w.opt.HTTPS = HTTPSOptions{HTTPSProxy: "https://proxy.example.com:3128", CACertPaths: []string{later}}
	a := w.adapter()
	ctx := testutil.Context(t)
	_, err := a.Connect().Dial(ctx, tunnel.NewFlow("tcp", "www.example.com:443"))
	testutil.ErrorSays(t, err, "which is not in the system's CAs", "the dial")
	broken := bundle + ".broken"
	testutil.NoError(t, os.WriteFile(broken, []byte("no CA"), 0o600))
	w.opt.HTTPS.CACertPaths = []string{broken}
	_, err = w.adapter().Connect().Dial(ctx, tunnel.NewFlow("tcp", "www.example.com:443"))
	testutil.ErrorSays(t, err, "cannot be read", "the dial")
	testutil.NoError(t, os.Rename(bundle, later))
	testutil.NoError(t, testutil.Must(a.cas.load())(t).Reload())
	reaches(t, a.Connect(), "www.example.com:443", "customer to www.example.com:443", tunnel.RouteCustomer)
}

func TestTransportKeepsConnections(t *testing.T) {
	w := newWorld(t)
	w.inside["10.2.2.2:80"] = web(t, "straight")
	w.guest["www.example.com"] = ips("10.2.2.2")
	tr := transport(w.adapter())
	defer tr.CloseIdleConnections()
	for range 5 {
		fetches(t, tr, "http://www.example.com/", "straight /", tunnel.RouteTunnel)
	}
	n := 0
	w.set(func() {
		for _, address := range w.dialed {
			if address == "10.2.2.2:80" {
				n++
			}
		}
	})
	testutil.Equal(t, n, 1, "connections for 5 requests")
}
