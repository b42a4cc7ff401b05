package egress

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/logging"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// live is a policy file with these rules, in mode enforce or report.
func live(t *testing.T, mode, rules string, registry *prometheus.Registry) *policyfile.Live {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	text := "version: 1\nmode: " + mode + "\nrules:\n" + rules
	testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return testutil.Must(policyfile.Open(path, "x_", registry, logging.Silent()))(t)
}

// What a server tells, and the agent's own file, hold for the address that a name has, for a
// connection that is dialed, resumed or handed over.
func TestHeldTo(t *testing.T) {
	live := live(t, "enforce", "- {name: a, action: allow, who: ['cn:a'], where: ['127.0.0.0/8']}\n"+
		"- {name: b, action: deny, who: ['*'], where: ['127.0.0.2']}\n", prometheus.NewRegistry())
	proxy := func(*url.URL) (*url.URL, error) { return url.Parse("http://127.0.0.1:1") }
	for what, c := range map[string]struct {
		options Options
		rules   string
		who     tunnel.Identity
		address string
		allowed bool
	}{
		"told nothing":            {address: "127.0.0.1", allowed: true},
		"told of another":         {rules: "-127.0.0.2\n", address: "127.0.0.1", allowed: true},
		"told to deny":            {rules: "-127.0.0.0/8\n", address: "127.0.0.1"},
		"told to allow":           {rules: "+127.0.0.1\n", address: "127.0.0.1", allowed: true},
		"told to allow another":   {rules: "+127.0.0.2\n", address: "127.0.0.1"},
		"told what is no rule":    {rules: "127.0.0.1\n", address: "127.0.0.1"},
		"by file":                 {options: Options{File: live}, who: "cn:a", address: "127.0.0.1", allowed: true},
		"by file, denied":         {options: Options{File: live}, who: "cn:a", address: "127.0.0.2"},
		"by file, another client": {options: Options{File: live}, who: "cn:c", address: "127.0.0.1"},
		"by file, no client":      {options: Options{File: live}, address: "127.0.0.1"},
		"by a proxy":              {options: Options{Proxy: proxy}, rules: "-127.0.0.2\n", address: "127.0.0.1"},
		"by file and a proxy":     {options: Options{File: live, Proxy: proxy}, who: "cn:a", address: "127.0.0.1"},
	} {
		t.Run(what, func(t *testing.T) {
			l := testutil.Listen(t)
			port := l.Addr().(*net.TCPAddr).Port
			at := netip.AddrPortFrom(netip.MustParseAddr(c.address), uint16(port))
			c.options.resolver = names{"a.example": {c.address}}
			d := New(c.options)
			f := tunnel.NewFlow("tcp", tunnel.JoinAddress("a.example", uint16(port)))
			f.Rules, f.Origin.Who = c.rules, c.who
			conn, err := d.Dial(testutil.Context(t), f)
			if err == nil {
				conn.Close()
			}
			denied := tunnel.FailureOf(err) == tunnel.FailDenied
			testutil.Holds(t, denied != c.allowed, "dialed: %v", err)
			err = d.Allow(f, net.TCPAddrFromAddrPort(at))
			testutil.Equal(t, err == nil, c.allowed, "it is resumed (%v)", err)
			err = d.Adopt(f, net.TCPAddrFromAddrPort(at))
			testutil.Equal(t, err == nil, c.allowed, "it is handed over (%v)", err)
		})
	}
}

// A dial that the file would refuse, but only reports, is judged by its host, by each address
// and again as it connects, and is counted once.
func TestReportedOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	live := live(t, "report", "- {name: a, action: deny, who: ['*'], where: ['127.0.0.0/8']}\n", registry)
	d := New(Options{File: live, resolver: names{"a.example": {"127.0.0.1", "127.0.0.2"}}})
	for n, host := range []string{"127.0.0.1", "a.example"} {
		c := testutil.Must(dial(t, d, fmt.Sprint(host, ":", echo(t, "127.0.0.1", 0))))(t)
		c.Close()
		err := promtest.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`# HELP x_policy_decisions_total Decisions of --policy-file about dials, by decision (allowed, denied, reported) and by the rule that denied; none: no rule allows it.
# TYPE x_policy_decisions_total counter
x_policy_decisions_total{decision="allowed",rule=""} 0
x_policy_decisions_total{decision="reported",rule="a"} %d
`, n+1)), "x_policy_decisions_total")
		testutil.Succeeds(t, err, "%s", host)
	}
}

// The rule that allows a connection is noted, also where a proxy resolves its name, and where
// another process has dialed it.
func TestTheRuleIsNoted(t *testing.T) {
	live := live(t, "enforce", "- {name: named, action: allow, who: ['*'], where: ['*.example']}\n"+
		"- {name: own, action: allow, who: ['*'], where: ['127.0.0.0/8']}\n", prometheus.NewRegistry())
	up := fmt.Sprint("127.0.0.1:", echo(t, "127.0.0.1", 0))
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(up))
	proxy := fakeProxy(t, nil, func(*http.Request) (string, bool) { return established, true })
	beside := Options{File: live, APIServers: []string{up}}
	proxied := Options{File: live, Proxy: func(*url.URL) (*url.URL, error) { return url.Parse("http://" + proxy) }}
	for what, c := range map[string]struct {
		options                Options
		network, address, want string
	}{
		"an address":     {Options{File: live}, "tcp", up, "own"},
		"by a proxy":     {proxied, "tcp", "a.example:443", "named"},
		"the API server": {beside, link.NetworkAPI, link.APIAddress, "own"},
	} {
		d := New(c.options)
		for _, done := range []string{"dialed", "handed over"} {
			f := tunnel.NewFlow(c.network, c.address)
			if done == "dialed" {
				testutil.Must(d.Dial(testutil.Context(t), f))(t).Close()
			} else {
				testutil.NoError(t, d.Adopt(f, at))
			}
			testutil.Equal(t, f.Rule, c.want, "%s, %s: rule", what, done)
		}
	}
}
