package policy

import (
	"errors"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func mustParse(t testing.TB, allow, deny []string) *Policy {
	t.Helper()
	return testutil.Must(Parse(allow, deny))(t)
}

// checkVerdict wants nil or a FailDenied.
func checkVerdict(t *testing.T, what string, err error, allowed bool) {
	t.Helper()
	if allowed {
		testutil.Succeeds(t, err, "%s", what)
		return
	}
	var typed *tunnel.DialError
	if !errors.As(err, &typed) || typed.Failure != tunnel.FailDenied {
		t.Errorf("%s: %v, want a DialError with FailDenied", what, err)
	} else if typed.Address == "" || typed.Err == nil {
		t.Errorf("%s: the refusal names no address or no rule: %+v", what, typed)
	}
}

func TestAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		allow, deny []string
		yes, no     []string
	}{
		"no rules": {
			yes: []string{"10.0.0.1:80", "100.100.100.201:80", "168.63.129.17:80", "[2001:db8::1]:443", "127.0.0.1:1", "169.254.20.10:53"},
			no: []string{"100.100.100.200:80", "168.63.129.16:80", "168.63.129.16:32526", "169.254.169.252:988", "169.254.0.23:80", "169.254.42.42:80", "[fd00:42::42]:80",
				"[fd00:c1::a9fe:a9fe]:80", "[fd00:100::100:200]:80", "[fd00:a9fe:a9fe::1]:80",
				"[::ffff:100.100.100.200]:80", "[64:ff9b::168.63.129.16]:80",
				"169.254.169.254:80", "169.254.170.2:80", "169.254.170.23:80", "[fd00:ec2::254]:80", "[fd00:ec2::23]:80",
				"[fd20:ce::254]:80", "[fe80::1]:80", "[fe80::1%eth0]:80", "[febf::1]:1", "[::ffff:169.254.169.254]:80", "[64:ff9b::169.254.169.254]:80"},
		},
		"allow list": {
			allow: []string{"10.0.0.0/8", "192.0.2.7:443", "[2001:db8::/32]:8000-8080", "2001:db8:1::1"},
			yes:   []string{"10.1.2.3:1", "10.255.255.255:65535", "192.0.2.7:443", "[2001:db8::5]:8000", "[2001:db8::5]:8080", "[2001:db8:1::1]:22", "[::ffff:10.0.0.1]:80"},
			no:    []string{"11.0.0.0:1", "192.0.2.7:444", "192.0.2.8:443", "[2001:db8::5]:7999", "[2001:db8::5]:8081", "0.0.0.0:80"},
		},
		"every destination, in more stars": {
			deny: []string{"***:80"},
			yes:  []string{"10.0.0.1:81"},
			no:   []string{"10.0.0.1:80", "[2001:db8::1]:80"},
		},
		"an IPv4 address as IPv6": {
			deny: []string{"::ffff:10.0.0.1"},
			yes:  []string{"10.0.0.2:80"},
			no:   []string{"10.0.0.1:80", "[::ffff:10.0.0.1]:80"},
		},
		"deny wins": {
			allow: []string{"10.0.0.0/8"}, deny: []string{"10.0.0.0/24", "10.0.1.0/24:22"},
			yes: []string{"10.0.1.1:23", "10.0.2.1:22"},
			no:  []string{"10.0.0.1:80", "10.0.1.1:22", "[::ffff:10.0.0.1]:80"},
		},
		"deny only": {
			deny: []string{"127.0.0.0/8", "::1", "[fd00::/8]:1-1023"},
			yes:  []string{"10.0.0.1:80", "[fd00::1]:1024"},
			no:   []string{"127.0.0.53:53", "[::1]:80", "0.0.0.0:80", "[::]:80", "[fd00::1]:1023", "[64:ff9b::127.0.0.1]:1"},
		},
		"behind a translator with a prefix of local use": {
			deny: []string{"10.0.0.0/8:22", "0.0.0.0/8"},
			yes: []string{"[64:ff9b:1::10.0.0.1]:23", "[64:ff9b:1::11.0.0.1]:22", "[64:ff9b:2::10.0.0.1]:22",
				"[64:ff9b:1:0b00:0:100::]:22", "[64:ff9b:1:0:b:0:100:0]:22"},
			no: []string{"[64:ff9b:1::10.0.0.1]:22", "[64:ff9b:1:fffe::10.0.0.1]:22", "[64:ff9b:1::169.254.169.254]:80",
				"[64:ff9b:1:0a00:0:100::]:22", "[64:ff9b:1:a9fe:a9:fe00::]:80", // /48
				"[64:ff9b:1:ff0a:0:1::]:22", "[64:ff9b:1:ffa9:fe:a9fe::]:80", // /56
				"[64:ff9b:1:ffff:a:0:100:0]:22", "[64:ff9b:1:0:a9:fea9:fe00:0]:80"}, // /64
		},
		"everything does not open metadata": {
			allow: []string{"*", "0.0.0.0/0", "::/0", "169.0.0.0/8"},
			yes:   []string{"10.0.0.1:80", "[2001:db8::1]:1"},
			no:    []string{"169.254.169.254:80", "[fd00:ec2::254]:80", "[fe80::1]:80"},
		},
		"named metadata opens": {
			allow: []string{"*", "169.254.169.254:80", "169.254.170.0/24", "fd00:ec2::254", "fe80::/10"},
			yes:   []string{"169.254.169.254:80", "169.254.170.2:1", "[fd00:ec2::254]:9", "[fe80::1%eth0]:80", "10.0.0.1:80"},
			no:    []string{"169.254.169.254:81", "[fd00:ec2::23]:80"},
		},
		"deny closes what allow opens": {
			allow: []string{"169.254.169.254"}, deny: []string{"169.254.169.254:80"},
			yes: []string{"169.254.169.254:81"}, no: []string{"169.254.169.254:80", "10.0.0.1:1"},
		},
		"deny all": {deny: []string{"*"}, no: []string{"10.0.0.1:80", "[2001:db8::1]:80"}},
		"star with port": {
			allow: []string{"*:443"}, yes: []string{"10.0.0.1:443"}, no: []string{"10.0.0.1:80"},
		},
		"mapped prefix": {deny: []string{"::ffff:10.0.0.0/104"}, no: []string{"10.9.9.9:1"}, yes: []string{"11.0.0.1:1"}},
		"host bits":     {deny: []string{"10.0.0.7/8"}, no: []string{"10.9.9.9:1"}},
		"host rule":     {allow: []string{"*.example.com"}, no: []string{"10.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, c.allow, c.deny)
			for _, text := range slices.Concat(c.yes, c.no) {
				to := netip.MustParseAddrPort(text)
				allowed := len(c.no) == 0 || !slices.Contains(c.no, text)
				checkVerdict(t, text, p.AllowAddr(to), allowed)
				// A literal asked for as a host is judged alike, on both sides.
				checkVerdict(t, text+" as host", p.AllowHost(to.Addr().String(), to.Port()), allowed)
				checkVerdict(t, text+" unresolved", p.AllowUnresolved(to.Addr().String(), to.Port()), allowed)
			}
		})
	}
}

func TestNames(t *testing.T) {
	type verdict struct {
		host       string
		port       uint16
		before     bool // AllowHost
		unresolved bool
		addr       string
		after      bool // AllowResolved with addr
	}
	for name, c := range map[string]struct {
		allow, deny []string
		want        []verdict
	}{
		"no rules": {want: []verdict{
			{"a.example.com", 80, true, true, "10.0.0.1", true},
			{"rebind.example.com", 80, true, true, "169.254.169.254", false},
		}},
		"allowed by name": {allow: []string{"*.Example.com.:443"}, want: []verdict{
			{"a.example.com", 443, true, true, "10.0.0.1", true},
			{"A.B.EXAMPLE.COM.", 443, true, true, "10.0.0.1", true},
			{"a.example.com", 80, false, false, "10.0.0.1", false},
			{"example.com", 443, false, false, "10.0.0.1", false},
			{"a.example.com.evil.org", 443, false, false, "10.0.0.1", false},
			{"a.example.com", 443, true, true, "169.254.169.254", false},
		}},
		"only addresses can tell": {allow: []string{"10.0.0.0/8:80"}, want: []verdict{
			{"a.example.com", 80, true, false, "10.0.0.1", true},
			{"a.example.com", 80, true, false, "11.0.0.1", false},
			{"a.example.com", 81, false, false, "10.0.0.1", false},
		}},
		"denied by name": {deny: []string{"internal.*", "*secret*:22"}, want: []verdict{
			{"internal.example.com", 80, false, false, "10.0.0.1", false},
			{"my.secret.example.com", 22, false, false, "10.0.0.1", false},
			{"my.secret.example.com", 23, true, true, "10.0.0.1", true},
		}},
		"denied by name in another spelling": {deny: []string{"*.Internal.example"}, want: []verdict{
			{"DB.internal.EXAMPLE.", 80, false, false, "10.0.0.1", false},
			{"db.internal.example..", 80, false, false, "10.0.0.1", false},
			{"db.internal.example.org", 80, true, true, "10.0.0.1", true},
		}},
		"denied address in another spelling": {deny: []string{"127.0.0.0/8"}, want: []verdict{
			{"0177.0.0.1", 80, false, false, "10.0.0.1", false},
			{"0x7F.1", 80, false, false, "10.0.0.1", false},
			{"127.65537", 80, false, false, "10.0.0.1", false},
			{"127.0.257", 80, false, false, "10.0.0.1", false},
			{"2130706433", 80, false, false, "10.0.0.1", false},
			{"017700000001.", 80, false, false, "10.0.0.1", false},
			{"127.0.0.1.", 80, false, false, "10.0.0.1", false},
			{"0xA9FEA9FE", 80, false, false, "10.0.0.1", false},
			{"0", 80, false, false, "10.0.0.1", false},
			{"127.0.0.09", 80, false, false, "10.0.0.1", false},
			{"0127.0.0.1", 80, false, false, "10.0.0.1", false},
			{"169.254.169.0254", 80, false, false, "10.0.0.1", false},
			{"012.1", 80, true, true, "10.0.0.1", true},
			{"127.0.0.1.example.com", 80, true, true, "10.0.0.1", true},
			{"127.0.0.0.1", 80, true, true, "10.0.0.1", true},
			{"127.0.0.256", 80, true, true, "10.0.0.1", true},
			{"127.09", 80, true, true, "10.0.0.1", true},
			{"9000000000", 80, true, true, "10.0.0.1", true},
			{"127..1", 80, true, true, "10.0.0.1", true},
		}},
		"allowed name at denied address": {allow: []string{"*.example.com"}, deny: []string{"10.0.0.0/8"}, want: []verdict{
			{"a.example.com", 80, true, true, "10.0.0.1", false},
			{"a.example.com", 80, true, true, "192.0.2.1", true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, c.allow, c.deny)
			for _, v := range c.want {
				checkVerdict(t, v.host+" before", p.AllowHost(v.host, v.port), v.before)
				checkVerdict(t, v.host+" unresolved", p.AllowUnresolved(v.host, v.port), v.unresolved)
				to := netip.AddrPortFrom(netip.MustParseAddr(v.addr), v.port)
				checkVerdict(t, v.host+" at "+v.addr, p.AllowResolved(v.host, to), v.after)
			}
		})
	}
}

func TestZeroAndNil(t *testing.T) {
	for _, p := range []*Policy{nil, {}} {
		checkVerdict(t, "private", p.AllowAddr(netip.MustParseAddrPort("10.0.0.1:1")), true)
		checkVerdict(t, "name", p.AllowHost("a.example", 1), true)
		checkVerdict(t, "unresolved", p.AllowUnresolved("a.example", 1), true)
		checkVerdict(t, "metadata", p.AllowAddr(netip.MustParseAddrPort("169.254.169.254:80")), false)
		rules, err := p.AskUnresolved("a.example", 1)
		checkVerdict(t, "asked", err, true)
		testutil.Equal(t, rules, "", "rules to tell")
		checkVerdict(t, "metadata in octal", p.AllowUnresolved("0251.0376.0251.0376", 80), false)
	}
	for _, p := range protected {
		for _, prefix := range p.addrs {
			checkVerdict(t, prefix.String(), (*Policy)(nil).AllowAddr(netip.AddrPortFrom(prefix.Addr(), 80)), false)
		}
	}
}

func TestReasonHidesRules(t *testing.T) {
	p := mustParse(t, nil, []string{"10.11.0.0/16"})
	err := p.AllowResolved("a.example", netip.MustParseAddrPort("10.11.1.1:80"))
	text := tunnel.AsDialError("", err).Text()
	testutil.Holds(t, !strings.Contains(text, "10.11"), "the client is told %q", text)
	testutil.Contains(t, err.Error(), `"10.11.0.0/16"`, "the log is not told the rule: %v", err)
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "is not a host",
		"   ":                    "is not a host",
		"a b":                    "is not a host",
		"http://a":               `port "//a"`,
		"a/b":                    "is not a CIDR",
		"10.0.0.0/33":            "is not a CIDR",
		"[10.0.0.0/8":            "bracket",
		"[::1]80":                "after the bracket",
		"[::1]:":                 "after the bracket",
		"[fd00::]/8":             "after the bracket",
		"a:":                     "no port",
		"a.org,b.org":            "is not a host",
		"a:0":                    `port "0"`,
		"a:65536":                `port "65536"`,
		"a:x":                    `port "x"`,
		"a:1-":                   `port ""`,
		"a:-1":                   `port ""`,
		"a:9-8":                  "backwards",
		"fd00::/8:443":           "[ADDRESS]:PORTS",
		"10.0.0.*":               "CIDR",
		"10.0.0.300":             "CIDR",
		"2130706433":             "CIDR",
		"0x7f.1":                 "CIDR",
		"exa\x00mple":            "is not a host",
		"[fe80::1%eth0/64]":      "is not a CIDR",
		strings.Repeat("a", 300): "is not a host",
	} {
		for _, lists := range [][2][]string{{{"ok.example", text}, nil}, {nil, {text}}} {
			_, err := Parse(lists[0], lists[1])
			if err == nil {
				t.Errorf("%q was accepted", text)
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want it to say %q", text, err, want)
			}
		}
	}
}

// What two policies want to be told is told together, unless one set of rules cannot say it.
func TestJoinTold(t *testing.T) {
	const deny, allow = "-10.1.0.0/16\n", "+10.0.0.0/8\n"
	for _, c := range []struct {
		a, b string
		ok   bool
	}{{"", "", true}, {deny, "", true}, {deny, deny + allow, true}, {deny + allow, deny, true}, {allow, allow, false}, {deny, strings.Repeat(deny, tunnel.RulesSize/len(deny)), false}} {
		both, ok := JoinTold(c.a, c.b)
		testutil.Holds(t, ok == c.ok && both == c.a+c.b, "%.40q and %.40q: %.40q, %v", c.a, c.b, both, ok)
	}
}

// ordinary is a policy as operators write it.
func ordinary(t testing.TB) *Policy {
	return mustParse(t,
		[]string{"10.0.0.0/8:443", "*.svc.cluster.local:1-65535", "kubernetes.default.svc", "[2001:db8::/32]:443"},
		[]string{"10.1.2.3", "*.internal.example", "192.168.0.0/16"})
}

// checks are allowed, so none makes an error.
var checks = map[string]func(p *Policy) error{
	"address":    func(p *Policy) error { return p.AllowAddr(netip.MustParseAddrPort("10.9.8.7:443")) },
	"address-v6": func(p *Policy) error { return p.AllowAddr(netip.MustParseAddrPort("[2001:db8::1]:443")) },
	"host":       func(p *Policy) error { return p.AllowHost("api.svc.cluster.local", 443) },
	"literal":    func(p *Policy) error { return p.AllowHost("10.9.8.7", 443) },
	"unresolved": func(p *Policy) error { return p.AllowUnresolved("api.svc.cluster.local", 443) },
	"resolved": func(p *Policy) error {
		return p.AllowResolved("api.svc.cluster.local", netip.MustParseAddrPort("10.9.8.7:443"))
	},
}

func BenchmarkAllow(b *testing.B) { benchmark(b, ordinary(b), checks) }

func benchmark(b *testing.B, p *Policy, checks map[string]func(p *Policy) error) {
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		check := checks[name]
		b.Run("what="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				testutil.NoError(b, check(p))
			}
		})
	}
}

// Every dial is checked at least twice; what is allowed must cost next to
// nothing.
func TestAllowAllocatesNothing(t *testing.T) {
	allocateNothing(t, ordinary(t), checks)
	allocateNothing(t, many(t), manyChecks)
	allocateNothing(t, nil, map[string]func(p *Policy) error{"no rules": checks["address"]})
}

func allocateNothing(t *testing.T, p *Policy, checks map[string]func(p *Policy) error) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			testutil.MaxAllocs(t, 0, func() { testutil.NoError(t, check(p)) })
		})
	}
}

// FuzzParse wants every rule that parses to keep its promises: as a deny rule it
// binds what it matches, and no deny rule ever opens a protected address.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "10.0.0.1:80", "[2001:db8::/32]:1-2", "fe80::/10", "*", "*:443", "*.example.com:1-65535", "::ffff:10.0.0.0/104", "a.b.", "[::]:1"} {
		f.Add(seed, "10.0.0.1", uint16(80))
	}
	f.Fuzz(func(t *testing.T, text, target string, port uint16) {
		deny, err := Parse(nil, []string{text})
		if err != nil {
			return
		}
		allow, err := Parse([]string{text}, nil)
		testutil.Requires(t, err == nil, "%q parses as a deny rule only: %v", text, err)
		if port == 0 {
			port = 1
		}
		_ = deny.AllowHost(target, port)
		addr, err := netip.ParseAddr(target)
		if err != nil {
			return
		}
		to := netip.AddrPortFrom(addr, port)
		none := (*Policy)(nil)
		testutil.Holds(t, none.AllowAddr(to) == nil || deny.AllowAddr(to) != nil, "deny rule %q opened %s", text, to)
		testutil.Holds(t, allow.AllowAddr(to) != nil || deny.AllowAddr(to) != nil,
			"rule %q allows %s but cannot deny it", text, to)
	})
}

// FuzzGlob holds the matcher against the standard library's, which agrees on
// hosts, for they have no separators.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"*.example.com", "a.example.com"}, {"a*b*c", "abbc"}, {"a", "a"}, {"a", "ab"}, {"*", ""}, {"*", "x"},
		{"a*", "a"}, {"a*b", "ab"}, {"a*b", "acb"}, {"a*b", "abc"},
		{"ab*ba", "aba"}, {"*a*a*", "xaxax"}, {"*a*a*", "xax"}, {"*a*a*", "xaax"}, {"*aa", "aaa"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, glob, host string) {
		if strings.ContainsAny(glob, `/\[]?`) || strings.ContainsAny(host, "/") {
			return
		}
		want, err := path.Match(glob, host)
		if err != nil {
			return
		}
		testutil.Equal(t, matchGlob(glob, host), want, "matchGlob(%q, %q) =", glob, host)
	})
}
