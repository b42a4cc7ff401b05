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
	u, err := url.Parse(text)
	testutil.NoError(t, err)
	return u
}

// web answers every request with its name.
func web(t testing.TB, name string) string {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", name, r.RequestURI)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.NoError(t, err)
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	testutil.NoError(t, err)
	res, err := tr.RoundTrip(req)
	if err != nil {
		return "!" + tunnel.FailureOf(err).Label(), trace
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
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
	if got, trace := reached(t, a.Connect(), "www.example.com:443"); got != wantConnect || trace.Route != connectRoute {
		t.Errorf("CONNECT: %q by %+v, want %q", got, trace, wantConnect)
	}
	if connectRoute == tunnel.RouteCustomer {
		for _, address := range []string{"10.1.1.1:22", "[2001:db8::1]:443"} {
			if got, trace := reached(t, a.Connect(), address); got != "customer to "+address || trace.Route != connectRoute {
				t.Errorf("CONNECT to %s: %q by %+v", address, got, trace)
			}
		}
	}
	if got, trace := fetch(t, tr, "http://www.example.com/path"); got != wantPlain || trace.Route != plainRoute {
		t.Errorf("plain: %q by %+v, want %q", got, trace, wantPlain)
	}
	if got, trace := reached(t, a.Connect(), "exempt.example.com:443"); got != "straight" || trace.Route != tunnel.RouteTunnel {
		t.Errorf("exempt CONNECT: %q by %+v", got, trace)
	}
	if got, trace := fetch(t, tr, "http://exempt.example.com/path"); got != "straight /path" || trace.Route != tunnel.RouteTunnel {
		t.Errorf("exempt plain: %q by %+v", got, trace)
	}
	if len(w.direct) > 0 {
		t.Errorf("the pod dialed %v itself", w.direct)
	}
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
		if (gotConnect == "straight") != c.straight || (gotPlain == "straight /") != c.straight {
			t.Errorf("no-proxy %q, %s: %q and %q", c.noProxy, c.host, gotConnect, gotPlain)
		}
	}
	w.opt.HTTPS.NoProxy = "port.example:8080"
	a := w.adapter()
	tr := transport(a)
	defer tr.CloseIdleConnections()
	if got, _ := fetch(t, tr, "http://port.example:8080/"); got != "straight /" {
		t.Errorf("with its port: %q", got)
	}
	if got, _ := fetch(t, tr, "http://port.example/"); got != "customer http://port.example/" {
		t.Errorf("with another port: %q", got)
	}
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
	if got, trace := reached(t, a.Connect(), "s3.amazonaws.com:443"); got != "cloud direct" || trace.Route != tunnel.RouteDirect {
		t.Errorf("CONNECT to the cloud: %q by %+v", got, trace)
	}
	if got, trace := fetch(t, tr, "http://s3.amazonaws.com/"); got != "cloud direct /" || trace.Route != tunnel.RouteDirect {
		t.Errorf("plain to the cloud: %q by %+v", got, trace)
	}
	if got, trace := reached(t, a.Connect(), "www.example.com:443"); got != "customer to www.example.com:443" || trace.Route != tunnel.RouteCustomer {
		t.Errorf("CONNECT by the proxy: %q by %+v", got, trace)
	}
	if got, trace := fetch(t, tr, "http://www.example.com/"); got != "customer http://www.example.com/" || trace.Route != tunnel.RouteCustomer {
		t.Errorf("plain by the proxy: %q by %+v", got, trace)
	}
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
		if dial == nil || dial.Failure != c.failure || dial.Text() != c.reason || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", proxy, err)
		}
	}
	w.opt.HTTPS = HTTPSOptions{HTTPProxy: "10.7.7.9:3128"}
	tr := transport(w.adapter())
	defer tr.CloseIdleConnections()
	if got, _ := fetch(t, tr, "http://www.example.com/"); got != "!refused" {
		t.Errorf("plain: %s", got)
	}
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
	if dial := tunnel.AsDialError("", err); dial == nil || !strings.Contains(dial.Text(), "certificate that is not trusted") {
		t.Fatal(err)
	}
	broken := bundle + ".broken"
	testutil.NoError(t, os.WriteFile(broken, []byte("no CA"), 0o600))
	w.opt.HTTPS.CACertPaths = []string{broken}
	_, err = w.adapter().Connect().Dial(ctx, tunnel.NewFlow("tcp", "www.example.com:443"))
	if dial := tunnel.AsDialError("", err); dial == nil || !strings.Contains(dial.Text(), "cannot be read") {
		t.Error(err)
	}
	testutil.NoError(t, os.Rename(bundle, later))
	cas, err := a.cas.load()
	testutil.NoError(t, err)
	testutil.NoError(t, cas.Reload())
	if got, _ := reached(t, a.Connect(), "www.example.com:443"); got != "customer to www.example.com:443" {
		t.Error(got)
	}
}

func TestTransportKeepsConnections(t *testing.T) {
	w := newWorld(t)
	w.inside["10.2.2.2:80"] = web(t, "straight")
	w.guest["www.example.com"] = ips("10.2.2.2")
	tr := transport(w.adapter())
	defer tr.CloseIdleConnections()
	for range 5 {
		if got, _ := fetch(t, tr, "http://www.example.com/"); got != "straight /" {
			t.Fatal(got)
		}
	}
	n := 0
	w.set(func() {
		for _, address := range w.dialed {
			if address == "10.2.2.2:80" {
				n++
			}
		}
	})
	if n != 1 {
		t.Errorf("%d connections for 5 requests", n)
	}
}
