package adapters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"konnectivity/adapters/resolve"
	"konnectivity/adapters/uplink"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// furnished is a world with targets.
func furnished(t testing.TB) *world {
	w := newWorld(t)
	w.services["ns/one"] = []string{"10.1.1.1"}
	w.services["ns/headless"] = []string{"None"}
	w.guest = map[string][]netip.Addr{"guest.example.com": ips("10.2.2.2"), "split.example.com": ips("10.2.2.3"), "many.example.com": ips("10.9.9.1", "10.9.9.2", "10.9.9.3", "10.2.2.2"),
		"dual.example.com": ips("fd00::1", "10.2.2.2"), "headless.ns.svc.cluster.local": ips("10.2.2.2")}
	w.system = map[string][]netip.Addr{"split.example.com": ips("192.0.2.3"), "system.example.com": ips("192.0.2.5"), "s3.amazonaws.com": ips("192.0.2.80")}
	w.inside["10.1.1.1:80"] = target(t, "service")
	w.inside["10.2.2.2:80"] = target(t, "guest")
	w.inside["10.2.2.3:80"] = target(t, "split inside")
	w.inside["192.0.2.5:80"] = target(t, "system by tunnel")
	w.inside["one.ns.svc:80"] = target(t, "name at the agent")
	w.inside["s3.amazonaws.com:80"] = target(t, "cloud by tunnel")
	w.outside["192.0.2.5:80"] = target(t, "system direct")
	w.outside["192.0.2.3:80"] = target(t, "split outside")
	w.outside["192.0.2.80:80"] = target(t, "cloud direct")
	w.outside["10.2.2.2:80"] = target(t, "guest address outside")
	return w
}

func TestRoutes(t *testing.T) {
	guestDNS := ResolvePolicy{GuestDNS: true}
	both := ResolvePolicy{GuestDNS: true, ManagementFallback: true}
	fronts := make(map[ResolvePolicy]tunnel.Dialer)
	front := func(policy ResolvePolicy) tunnel.Dialer {
		if fronts[policy] == nil {
			w := furnished(t)
			w.opt.SOCKS5 = policy
			w.opt.Direct.CloudAPIs = true
			fronts[policy] = w.adapter().SOCKS5()
		}
		return fronts[policy]
	}
	for _, c := range []struct {
		policy   ResolvePolicy
		address  string
		want     string
		route    tunnel.Route
		resolved string
	}{
		// SOCKS5 without flags: Services, then the system resolver.
		{ResolvePolicy{}, "one.ns.svc:80", "service", tunnel.RouteTunnel, "10.1.1.1:80"},
		{ResolvePolicy{}, "one.ns:80", "service", tunnel.RouteTunnel, "10.1.1.1:80"},
		{ResolvePolicy{}, "system.example.com:80", "system by tunnel", tunnel.RouteTunnel, "192.0.2.5:80"},
		{ResolvePolicy{}, "guest.example.com:80", "!no_such_host", tunnel.RouteTunnel, ""},
		{ResolvePolicy{}, "10.2.2.2:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{ResolvePolicy{ManagementFallback: true}, "system.example.com:80", "system by tunnel", tunnel.RouteTunnel, "192.0.2.5:80"},
		// Disabled: the agent gets the name.
		{ResolvePolicy{Disabled: true}, "one.ns.svc:80", "name at the agent", tunnel.RouteTunnel, ""},
		{ResolvePolicy{Disabled: true}, "guest.example.com:80", "!no_such_host", tunnel.RouteTunnel, ""},
		// Guest DNS.
		{guestDNS, "guest.example.com:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{guestDNS, "GUEST.example.com.:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{guestDNS, "headless.ns.svc:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{guestDNS, "one.ns.svc:80", "service", tunnel.RouteTunnel, "10.1.1.1:80"},
		{guestDNS, "split.example.com:80", "split inside", tunnel.RouteTunnel, "10.2.2.3:80"},
		{guestDNS, "system.example.com:80", "!no_such_host", tunnel.RouteTunnel, ""},
		{guestDNS, "many.example.com:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{guestDNS, "guest.example.com:81", "!refused", tunnel.RouteTunnel, "10.2.2.2:81"},
		// With the fallback, but a tunnel that works.
		{both, "guest.example.com:80", "guest", tunnel.RouteTunnel, "10.2.2.2:80"},
		{both, "split.example.com:80", "split inside", tunnel.RouteTunnel, "10.2.2.3:80"},
		{both, "nobody.example.com:80", "!no_such_host", tunnel.RouteTunnel, ""},
		{both, "system.example.com:80", "system direct", tunnel.RouteFallback, "192.0.2.5:80"}, // only this side knows it
		// The bypass comes before all of that.
		{guestDNS, "s3.amazonaws.com:80", "cloud direct", tunnel.RouteDirect, "192.0.2.80:80"},
		{ResolvePolicy{Disabled: true}, "S3.AmazonAWS.com.:80", "!no_such_host", tunnel.RouteDirect, ""}, // the fake resolver is literal
		{guestDNS, "no-port", "!bad_address", "", ""},
		{guestDNS, "bad host:80", "!bad_address", "", ""},
	} {
		got, trace := reached(t, front(c.policy), c.address)
		testutil.Holds(t, got == c.want && trace.Route == c.route && trace.Resolved == c.resolved,
			"%+v, %s: %q by %+v, want %q by %s %s", c.policy, c.address, got, trace, c.want, c.route, c.resolved)
	}
}

func TestWithoutKubeconfigTheAgentResolves(t *testing.T) {
	w := furnished(t)
	w.opt.Hosted.Kubeconfig = ""
	a := w.adapter()
	for _, d := range []tunnel.Dialer{a.SOCKS5(), a.Connect()} {
		reaches(t, d, "one.ns.svc:80", "name at the agent", tunnel.RouteTunnel)
	}
}

func TestPreferIPv4(t *testing.T) {
	w := furnished(t)
	w.inside["[fd00::1]:80"] = target(t, "six")
	w.services["ns/dual"] = []string{"fd00::1", "10.2.2.2"}
	reaches(t, w.adapter().Connect(), "dual.ns:80", "six", tunnel.RouteTunnel)
	w.opt.Hosted.PreferIPv4 = true
	reaches(t, w.adapter().Connect(), "dual.ns:80", "guest", tunnel.RouteTunnel)
}

func TestGuestDNSServiceOption(t *testing.T) {
	w := furnished(t)
	delete(w.services, "openshift-dns/dns-default")
	w.services["kube-system/kube-dns"] = []string{"10.0.0.10"}
	w.opt.Hosted.GuestDNSService = "kube-system/kube-dns"
	reaches(t, w.adapter().Connect(), "guest.example.com:80", "guest", tunnel.RouteTunnel)
}

func TestManagementFallback(t *testing.T) {
	w := furnished(t)
	w.opt.SOCKS5 = ResolvePolicy{GuestDNS: true, ManagementFallback: true}
	a := w.adapter()
	check := func(address, want string, route tunnel.Route) {
		t.Helper()
		reaches(t, a.SOCKS5(), address, want, route)
	}
	check("split.example.com:80", "split inside", tunnel.RouteTunnel) // and is cached
	w.loseAgent()
	check("nobody.example.com:80", "!resolve", tunnel.RouteTunnel)
	testutil.Equal(t, promtest.ToFloat64(a.metrics.tunnelDown), 0, "the tunnel is down, by a name nobody knows")
	check("split.example.com:80", "split outside", tunnel.RouteFallback) // though the name was cached
	testutil.Equal(t, promtest.ToFloat64(a.metrics.tunnelDown), 1, "the tunnel is down")
	check("system.example.com:80", "system direct", tunnel.RouteFallback)
	check("192.0.2.5:80", "system direct", tunnel.RouteFallback)
	check("one.ns.svc:80", "!no_agent", tunnel.RouteTunnel) // a hosted Service is never looked for outside
	check("guest.example.com:80", "!resolve", tunnel.RouteTunnel)
	reaches(t, a.Connect(), "192.0.2.5:80", "!no_agent", tunnel.RouteTunnel) // a front without the fallback
	w.set(func() { w.agent = true })
	check("split.example.com:80", "split outside", tunnel.RouteFallback) // until the next probe
	testutil.Succeeds(t, a.guest.Probe(t.Context()), "the probe of a tunnel that is back")
}

func TestWithoutFallbackATunnelDownIsAnError(t *testing.T) {
	w := furnished(t)
	w.agent = false
	a := w.adapter()
	reaches(t, a.Connect(), "system.example.com:80", "!resolve", tunnel.RouteTunnel)
	testutil.Equal(t, len(w.direct), 0, "dials by the pod itself: %v", w.direct)
}

func TestDirectHonoursThePodsProxy(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"upper": {"HTTPS_PROXY": "http://us:er@192.0.2.99:3128", "NO_PROXY": "exempt.amazonaws.com.,.azure.com"},
		"lower": {"https_proxy": "us:er@192.0.2.99:3128", "no_proxy": "exempt.amazonaws.com,*.azure.com", "HTTPS_PROXY": "http://nowhere:1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := furnished(t)
			w.system["exempt.amazonaws.com"] = ips("192.0.2.80")
			w.system["x.azure.com"] = ips("192.0.2.80")
			pod := &customer{name: "pod's proxy", auth: "Basic dXM6ZXI="}
			w.outside["192.0.2.99:3128"] = pod.start(t)
			w.opt.Direct.CloudAPIs = true
			w.opt.Direct.Suffixes = []string{"*.example.net"}
			w.opt.Direct.env = func(k string) string { return env[k] }
			a := w.adapter()
			for address, want := range map[string]string{
				"s3.amazonaws.com:443": "pod's proxy to s3.amazonaws.com:443", "a.example.net:443": "pod's proxy to a.example.net:443",
				"exempt.amazonaws.com:80": "cloud direct", "x.azure.com:80": "cloud direct",
			} {
				for _, d := range []tunnel.Dialer{a.SOCKS5(), a.Connect()} {
					reaches(t, d, address, want, tunnel.RouteDirect)
				}
			}
		})
	}
}

func TestDirectRefusesLoops(t *testing.T) {
	w := newWorld(t)
	w.system["self.example.net"] = ips("127.0.0.1")
	w.opt.Direct.Suffixes = []string{"example.net"}
	w.opt.Direct.Refuse = func(a netip.AddrPort) bool { return a == netip.MustParseAddrPort("127.0.0.1:8090") }
	a := w.adapter()
	reaches(t, a.SOCKS5(), "self.example.net:8090", "!denied", tunnel.RouteDirect)
	reaches(t, a.SOCKS5(), "self.example.net:8091", "!refused", tunnel.RouteDirect)
}

// Nothing leads to the metadata services of the cloud that the pod runs on: not a name
// that the hosted cluster's DNS denies and the pod's resolver knows, nor an address
// while the tunnel is deemed down, nor a name for the bypass.
func TestDirectRefusesMetadataServices(t *testing.T) {
	w := furnished(t)
	w.opt.SOCKS5 = ResolvePolicy{GuestDNS: true, ManagementFallback: true}
	w.opt.Direct.Suffixes = []string{"example.net"}
	credentials := target(t, "credentials")
	for _, ip := range []string{"169.254.169.254", "fe80::a9fe:a9fe"} {
		w.outside[netip.AddrPortFrom(netip.MustParseAddr(ip), 80).String()] = credentials
	}
	w.system["evil.example.com"] = ips("169.254.169.254")
	w.system["evil.example.net"] = ips("::ffff:169.254.169.254", "fe80::a9fe:a9fe")
	a := w.adapter()
	refused := func(address string, route tunnel.Route) {
		t.Helper()
		reaches(t, a.SOCKS5(), address, "!denied", route)
	}
	refused("evil.example.com:80", tunnel.RouteFallback)
	refused("evil.example.net:80", tunnel.RouteDirect)
	w.loseAgent()
	reaches(t, a.SOCKS5(), "split.example.com:80", "split outside", tunnel.RouteFallback) // the tunnel is deemed down
	refused("169.254.169.254:80", tunnel.RouteFallback)
	refused("[::ffff:169.254.169.254]:80", tunnel.RouteFallback)
	testutil.AtMost(t, len(w.direct), 1, "dials of the pod: %v", w.direct) // but split.example.com
}

// The pod's proxy does not either, as far as its destination is known here.
func TestThePodsProxyIsNotAskedForMetadataServices(t *testing.T) {
	w := furnished(t)
	w.opt.SOCKS5 = ResolvePolicy{GuestDNS: true, ManagementFallback: true}
	w.opt.Direct.Suffixes = []string{"example.net"}
	w.opt.Direct.env = func(k string) string { return map[string]string{"HTTPS_PROXY": "http://192.0.2.99:3128"}[k] }
	pod := &customer{name: "pod's proxy"}
	w.outside["192.0.2.99:3128"] = pod.start(t)
	w.system["evil.example.com"] = ips("192.0.2.80", "169.254.169.254")
	a := w.adapter()
	reaches(t, a.SOCKS5(), "evil.example.com:80", "!denied", tunnel.RouteFallback)
	w.loseAgent()
	reaches(t, a.SOCKS5(), "split.example.com:80", "pod's proxy to split.example.com:80", tunnel.RouteFallback)
	for _, address := range []string{"169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80"} {
		reaches(t, a.SOCKS5(), address, "!denied", tunnel.RouteFallback)
	}
}

// Requests for the process itself are refused, whatever way they would go. Plain ones
// are the front's to judge.
func TestSelfIsRefused(t *testing.T) {
	w := furnished(t)
	w.opt.Direct.CloudAPIs = true
	self := ""
	w.opt.Self = func(address string) bool { return address == self }
	a := w.adapter()
	for _, address := range []string{"guest.example.com:80", "s3.amazonaws.com:80"} {
		self = address
		for name, d := range map[string]tunnel.Dialer{"SOCKS5": a.SOCKS5(), "Connect": a.Connect(), "Straight": a.Straight(), "Forward": a.Forward()} {
			got, _ := reached(t, d, address)
			testutil.Equal(t, got == "!denied", name != "Forward", "%s to %s is denied: %q", name, address, got)
		}
	}
	self = ""
	reaches(t, a.Connect(), "guest.example.com:80", "guest", tunnel.RouteTunnel) // of another
}

func TestBypass(t *testing.T) {
	b := testutil.Must(newBypass(append(cloudSuffixes(), ".example.com", "*.Example.net", "example.org."), []string{"proxy.amazonaws.com"}))(t)
	for _, host := range []string{"s3.us-east-1.amazonaws.com", "amazonaws.com", "S3.AMAZONAWS.COM.", "x.c2s.ic.gov", "x.hci.ic.gov", "x.sc2s.sgov.gov", "login.microsoftonline.com",
		"management.azure.com", "iam.cloud.ibm.com", "a.example.com", "b.example.net", "example.org"} {
		testutil.Equal(t, b.matches(host), true, "%s is bypassed", host)
	}
	for _, host := range []string{"notamazonaws.com", "amazonaws.com.evil.example", "proxy.amazonaws.com", "PROXY.amazonaws.com.", "ibm.com", "10.0.0.1", ""} {
		testutil.Equal(t, b.matches(host), false, "%s is bypassed", host)
	}
	for _, suffix := range []string{"", ".", "*", "*.", "10.0.0.1", "a b", "http://x", "x:1", "a.*.b", strings.Repeat("x", 300)} {
		testutil.Fails(t, testutil.Err(newBypass([]string{suffix}, nil)), "suffix %q", suffix)
	}
	testutil.Equal(t, new(bypass).matches("s3.amazonaws.com"), false, "the zero bypass knows a host")
}

func TestBadOptions(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*Options){
		"no address":   func(o *Options) { o.Server.Address = "" },
		"no TLS":       func(o *Options) { o.Server.TLS = nil },
		"link mode":    func(o *Options) { o.Server.Mode = "maybe" },
		"http proxy":   func(o *Options) { o.HTTPS.HTTPProxy = "socks5://u:hunter2@p" },
		"https proxy":  func(o *Options) { o.HTTPS.HTTPSProxy = "http://u:hunter2@:x" },
		"dns service":  func(o *Options) { o.Hosted.GuestDNSService = "dns-default" },
		"dns service2": func(o *Options) { o.Hosted.GuestDNSService = "a/b/c" },
		"suffix":       func(o *Options) { o.Direct.Suffixes = []string{"*"} },
		"HTTPS_PROXY": func(o *Options) {
			o.Direct.CloudAPIs = true
			o.Direct.env = func(string) string { return "ftp://u:hunter2@x" }
		},
	} {
		opt := w.opt
		change(&opt)
		a, err := New(opt)
		testutil.Holds(t, err != nil && a == nil && !strings.Contains(err.Error(), "hunter2"),
			"%s: %v", name, err)
		var option *OptionError
		testutil.Holds(t, name == "HTTPS_PROXY" || errors.As(err, &option), "%s: the error does not say which option: %v", name, err)
	}
	opt := w.opt // nothing goes direct: it does not matter
	opt.Direct.env = func(string) string { return "ftp://u:hunter2@x" }
	a := testutil.Must(New(opt))(t)
	a.close()
}

func TestStartsWithNothingInPlace(t *testing.T) {
	w := furnished(t)
	kubeconfig := w.opt.Hosted.Kubeconfig
	w.opt.Hosted.Kubeconfig = kubeconfig + ".later"
	w.opt.dialServer = nil
	w.opt.SOCKS5 = ResolvePolicy{GuestDNS: true}
	w.opt.HTTPS = HTTPSOptions{HTTPSProxy: "https://proxy.example:1", CACertPaths: []string{"/nowhere/at/all.pem"}, NoProxy: "*"}
	a := w.adapter()
	for address, want := range map[string]string{"one.ns.svc:80": "!resolve", "guest.example.com:80": "!resolve", "10.1.1.1:80": "!unavailable"} {
		for _, d := range []tunnel.Dialer{a.SOCKS5(), a.Connect()} {
			start := time.Now()
			if got, _ := reached(t, d, address); got != want || time.Since(start) > tunnel.DefaultDialTimeout {
				t.Errorf("%s: %s after %v", address, got, time.Since(start))
			}
		}
	}
	testutil.ErrorSays(t, a.Ready(), "refuses connections", "ready")
	testutil.NoError(t, os.Rename(kubeconfig, kubeconfig+".later"))
	testutil.Eventually(t, "a Service known", func() bool { got, _ := reached(t, a.SOCKS5(), "one.ns.svc:80"); return got == "!unavailable" })
}

func TestEveryDialIsBoundedAndHasAnID(t *testing.T) {
	w := newWorld(t)
	w.inside["10.1.1.1:80"] = target(t, "service")
	a := w.adapter()
	for _, id := range []string{"", "00112233aabbccdd"} {
		f := &tunnel.Forwarder{Dialer: a.SOCKS5()}
		flow := &tunnel.Flow{Request: tunnel.Request{ID: id, Network: "tcp", Address: "10.1.1.1:80"}}
		c := testutil.Must(f.Dial(t.Context(), flow))(t)
		c.Close()
		got := w.ids[len(w.ids)-1]
		testutil.Holds(t, got != "" && (id == "" || got == id), "the server saw id %q for %q", got, id)
	}
	bounded := &path{parts: &parts{metrics: testutil.Must(newMetrics(nil, func() uplink.Stats { return uplink.Stats{} }))(t)}, bypass: new(bypass)}
	bounded.server = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		end, ok := ctx.Deadline()
		testutil.Equal(t, ok, true, "a dial has a deadline")
		testutil.AtMost(t, time.Until(end), 10*time.Second, "time for a dial that was given none")
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
	})
	_, _ = bounded.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := testutil.Err(a.SOCKS5().Dial(ctx, tunnel.NewFlow("tcp", "guest.example.com:80")))
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailCancelled, "a dial that is given up")
}

func TestMetrics(t *testing.T) {
	w := furnished(t)
	reg := prometheus.NewRegistry()
	w.opt.Registerer = reg
	w.opt.Direct.CloudAPIs = true
	a := w.adapter()
	for _, address := range []string{"one.ns:80", "guest.example.com:80", "guest.example.com:81", "nobody.example.com:80", "s3.amazonaws.com:80", "bad"} {
		reached(t, a.Connect(), address)
	}
	testutil.NoError(t, promtest.GatherAndCompare(reg, strings.NewReader(`
# HELP konnectivity_sidecar_dials_total Destinations dialed, by route (tunnel, direct, customer_proxy, fallback; none if it failed before) and outcome (ok, or why not).
# TYPE konnectivity_sidecar_dials_total counter
konnectivity_sidecar_dials_total{outcome="bad_address",route="none"} 1
konnectivity_sidecar_dials_total{outcome="no_such_host",route="tunnel"} 1
konnectivity_sidecar_dials_total{outcome="ok",route="direct"} 1
konnectivity_sidecar_dials_total{outcome="ok",route="tunnel"} 2
konnectivity_sidecar_dials_total{outcome="refused",route="tunnel"} 1
# HELP konnectivity_sidecar_tunnel_deemed_down 1 while the management fallback is in use: names are resolved and connections made outside the tunnel.
# TYPE konnectivity_sidecar_tunnel_deemed_down gauge
konnectivity_sidecar_tunnel_deemed_down 0
`), "konnectivity_sidecar_dials_total", "konnectivity_sidecar_tunnel_deemed_down"))
	lookups := a.metrics.resolveTime
	for what, c := range map[string]struct {
		of   prometheus.Observer
		want uint64
	}{
		"dials by the tunnel":    {a.metrics.dialTime.WithLabelValues("tunnel"), 2},
		"Services that exist":    {lookups.WithLabelValues("service", "found"), 1},
		"names that exist":       {lookups.WithLabelValues("guest", "found"), 2},
		"names that do not":      {lookups.WithLabelValues("none", "not_found"), 1},
		"names without a source": {lookups.WithLabelValues("none", "unavailable"), 0},
	} {
		var m dto.Metric
		testutil.NoError(t, c.of.(prometheus.Metric).Write(&m))
		testutil.Equal(t, m.GetHistogram().GetSampleCount(), c.want, "%s", what)
	}
	problems, err := promtest.GatherAndLint(reg)
	testutil.Succeeds(t, err, "lint")
	testutil.Equal(t, len(problems), 0, "problems: %v", problems)
	testutil.Fails(t, testutil.Err(New(w.opt)), "registering twice")
}

func TestLabelsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := testutil.Must(newMetrics(reg, func() uplink.Stats { return uplink.Stats{} }))(t)
	for _, route := range []tunnel.Route{tunnel.RouteTunnel, tunnel.RouteDirect, tunnel.RouteCustomer, tunnel.RouteFallback} {
		f := new(tunnel.Flow)
		f.Route = route
		m.dialed(f, 0, nil)
	}
	for failure := range tunnel.Failures() {
		m.dialed(new(tunnel.Flow), 0, &tunnel.DialError{Failure: failure})
	}
	for _, source := range []resolve.Source{resolve.FromService, resolve.FromGuest, resolve.FromSystem} {
		m.resolved(source, 0, nil)
	}
	m.resolved("", 0, &net.DNSError{IsNotFound: true})
	m.resolved("", 0, io.EOF)
	testutil.DocumentedLabels(t, "../docs/sidecars.md", "Metrics").Check(t, "", testutil.Must(reg.Gather())(t))
}

// What is said of the server is what its Stats say.
func TestMetricsOfTheServer(t *testing.T) {
	reg := prometheus.NewRegistry()
	stats := func() uplink.Stats {
		return uplink.Stats{Links: 1, Lanes: 2, Streams: 3, Connects: 4, Failures: 5, Lost: 6}
	}
	testutil.NoError(t, testutil.Err(newMetrics(reg, stats)))
	got := map[string]float64{}
	for _, f := range testutil.Must(reg.Gather())(t) {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), metricsPrefix)
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "server_") })
	want := map[string]float64{
		"server_links": 1, "server_lanes": 2, "server_streams": 3,
		"server_connects_total ok": 4, "server_connects_total failed": 5, "server_links_lost_total": 6,
	}
	testutil.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "what is counted")
}

func TestAPIIsReachedByThePodsProxy(t *testing.T) {
	d := newDirect(DirectOptions{})
	p, noProxy, err := podProxy(func(k string) string {
		return map[string]string{"HTTPS_PROXY": "http://us:er@proxy:3128", "NO_PROXY": "kube-apiserver,.svc"}[k]
	})
	testutil.NoError(t, err)
	d.use(p, noProxy, nil)
	for text, want := range map[string]bool{"https://api.example:6443": true, "https://kube-apiserver:6443": false, "https://x.svc": false, "https://127.0.0.1:6443": false} {
		testutil.Equal(t, testutil.Must(d.proxyFor(mustURL(t, text)))(t) != nil, want, "%s", text)
	}
}

// A cluster without a route to one family gets to a name that has many addresses of it, too.
func TestBothFamiliesAreTried(t *testing.T) {
	w := furnished(t)
	six, four := ips("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8::5"), ips("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5")
	w.inside["[fd00::1]:80"] = target(t, "six")
	w.guest["six.example.com"] = append(four, ips("fd00::1")...)   // A comes first
	w.system["four.example.com"] = append(six, ips("10.2.2.2")...) // the pod has IPv6
	a := w.adapter()
	reaches(t, a.Connect(), "six.example.com:80", "six", tunnel.RouteTunnel)
	reaches(t, a.SOCKS5(), "four.example.com:80", "guest", tunnel.RouteTunnel)
}
