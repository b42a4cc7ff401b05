package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// slow decides as the documentation has it, rule by rule.
type slow struct {
	allow, deny []*rule
	closed      bool
}

func (s slow) name(host string, port uint16) bool {
	return !slices.ContainsFunc(s.deny, named1(host, port)) && (!s.closed || slices.ContainsFunc(s.allow, named1(host, port)))
}

func (s slow) resolved(host string, to netip.AddrPort) bool {
	return !slices.ContainsFunc(s.deny, named1(host, to.Port())) && !slices.ContainsFunc(s.deny, covers(to)) &&
		(!s.closed || slices.ContainsFunc(s.allow, named1(host, to.Port())) || slices.ContainsFunc(s.allow, covers(to)))
}

func named1(host string, port uint16) func(*rule) bool {
	return func(r *rule) bool { return r.glob != "" && r.has(port) && matchGlob(r.glob, host) }
}

func covers(to netip.AddrPort) func(*rule) bool {
	return func(r *rule) bool {
		return r.has(to.Port()) && (r.glob == "*" || r.prefix.IsValid() && r.prefix.Contains(to.Addr()))
	}
}

var (
	someHosts = []string{"a", "a.b", "b.a.b", "x.a.b", "c", "c.b", "aa.b", "ab", "a.c"}
	someGlobs = []string{"*", "a", "a.b", "*.b", "*.a.b", "a*", "*b", "a*b", "x*.b", "*.c", "a.*"}
	someAddrs = []string{"0.0.0.0", "10.0.0.0", "10.0.0.1", "10.0.255.255", "10.1.0.0", "255.255.255.255", "9.255.255.255", "::", "2001:db8::", "2001:db8::1", "2001:db8:0:1::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
)

// someRules are rules that meet one another often.
func someRules(rnd *rand.Rand) (texts []string) {
	for range rnd.IntN(8) {
		text := someGlobs[rnd.IntN(len(someGlobs))]
		if rnd.IntN(2) == 0 {
			addr := netip.MustParseAddr(someAddrs[rnd.IntN(len(someAddrs))])
			text = "[" + netip.PrefixFrom(addr, rnd.IntN(addr.BitLen()+1)).Masked().String() + "]"
		}
		if first := rnd.IntN(4); first > 0 {
			text += fmt.Sprintf(":%d-%d", first, first+rnd.IntN(3))
		}
		texts = append(texts, text)
	}
	return texts
}

// FuzzAgainstTheSlow compares decisions with those made rule by rule.
func FuzzAgainstTheSlow(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		allow, deny := someRules(rnd), someRules(rnd)
		p := testutil.Must(Parse(allow, deny))(t)
		s := slow{testutil.Must(parseRules(allow))(t), testutil.Must(parseRules(deny))(t), len(allow) > 0}
		told := func(host string, to netip.AddrPort) bool { // by a server, and an agent without rules of its own
			rules, err := p.AskUnresolved(host, to.Port())
			if err != nil {
				return false
			}
			at := testutil.Must(Told(rules))(t)
			return at.AllowHost(host, to.Port()) == nil && at.AllowResolved(host, to) == nil
		}
		for _, host := range someHosts {
			for port := uint16(1); port < 7; port++ {
				got, want := p.AllowUnresolved(host, port) == nil, s.name(host, port)
				testutil.Holds(t, got == want, "allow %q, deny %q: %s:%d: %v", allow, deny, host, port, got)
				for _, addr := range someAddrs {
					to := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
					if to.Addr().IsUnspecified() {
						continue // which is the machine itself, too
					}
					want := s.resolved(host, to)
					testutil.Equal(t, p.AllowResolved(host, to) == nil, want, "allow %q, deny %q: %s at %v", allow, deny, host, to)
					testutil.Equal(t, told(host, to), want, "allow %q, deny %q: %s at %v, as told", allow, deny, host, to)
				}
			}
		}
	})
}

// many are 1,000 rules of all kinds that apply to one client and match no check, and one that
// allows.
func many(t testing.TB) *Policy {
	var rules []Rule
	for i := range 1000 {
		at := fmt.Sprintf("10.%d.%d.0/24:443", i/250, i%250)
		switch i % 4 {
		case 1:
			at = fmt.Sprintf("*.n%d.example:443", i)
		case 2:
			at = fmt.Sprintf("n%d.example", i)
		case 3:
			at = fmt.Sprintf("[2001:db8:%x::/%d]:80", i, 48+i%60)
		}
		rules = append(rules, Rule{Name: fmt.Sprint("r", i), Allow: i%3 > 0, Who: []string{"cn:a*"}, Where: []string{at}})
	}
	rules = append(rules, Rule{Name: "last", Allow: true, Who: []string{"cn:a*"}, Where: []string{"192.0.2.0/24", "*.wanted.example"}})
	return testutil.Must(ParseRules(rules))(t).For(tunnel.NewIdentity("cn:abc"), "")
}

var manyChecks = map[string]func(p *Policy) error{
	"address": func(p *Policy) error { return p.AllowAddr(netip.MustParseAddrPort("192.0.2.7:443")) },
	"name":    func(p *Policy) error { _, err := p.AskUnresolved("a.b.wanted.example", 443); return err },
	"resolved": func(p *Policy) error {
		return p.AllowResolved("a.b.wanted.example", netip.MustParseAddrPort("[2001:db8:ffff::7]:443"))
	},
}

func BenchmarkManyRules(b *testing.B) { benchmark(b, many(b), manyChecks) }

// Whom rules are for.
func TestFor(t *testing.T) {
	rules := testutil.Must(ParseRules([]Rule{
		{Name: "a", Allow: true, Who: []string{"cn:a*", "uri:spiffe://t/*"}, Where: []string{"10.0.0.1"}},
		{Name: "all", Allow: true, Who: []string{"*"}, Where: []string{"10.0.0.2"}},
		{Name: "red", Allow: true, Who: []string{"cn:a*"}, Tenants: []string{"red-*"}, Where: []string{"10.0.0.3"}},
		{Name: "dns", Allow: true, Who: []string{"dns:A.example"}, Where: []string{"10.0.0.4"}},
		{Name: "green", Allow: true, Who: []string{"*"}, Tenants: []string{"green"}, Where: []string{"10.0.0.2"}},
		{Name: "case", Allow: true, Who: []string{"cn:Case"}, Where: []string{"10.0.0.4"}},
		{Name: "b", Who: []string{"cn:b"}, Where: []string{"10.0.0.2"}},
	}))(t)
	for _, c := range []struct {
		who    tunnel.Identity
		tenant string
		want   string // the last bytes that are reached
	}{
		{"cn:abc", "", "12"},
		{"uri:spiffe://t/x", "", "12"},
		{"uri:cn:a", "", "2"},
		{"cn:b\nuri:spiffe://t/x", "", "1"},
		{"cn:b", "", ""},
		{"dns:a.example", "", "24"},
		{"cn:dns:a.example", "", "2"},
		{"", "", ""}, // may be b
		{"cn:a", "red-1", "3"},
		{"cn:c", "red-1", ""},
		{"cn:a", "blue", ""},
		{"cn:b", "blue", ""},
		{"cn:a", "green", "2"},
		{"cn:b", "green", ""}, // what denies is for all tenants
		{"cn:Case", "", "24"},
		{"cn:case", "", "2"},
	} {
		got := ""
		for i := range 5 {
			if rules.For(c.who, c.tenant).AllowAddr(netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:1", i))) == nil {
				got += fmt.Sprint(i)
			}
		}
		testutil.Equal(t, got, c.want, "%q of %q reaches", c.who, c.tenant)
	}
}

// Which rule allows a destination: one for the name before one for the address it has led to, and
// none for that where an address was asked for.
func TestAllowedBy(t *testing.T) {
	anybody := []string{"*"}
	p := testutil.Must(ParseRules([]Rule{
		{Name: "network", Allow: true, Who: anybody, Where: []string{"10.0.0.0/8"}},
		{Name: "name", Allow: true, Who: anybody, Where: []string{"*.example"}},
	}))(t).For("", "")
	for _, c := range []struct{ host, at, want string }{
		{"10.0.0.1", "", "network"},
		{"192.0.2.1", "10.0.0.1", ""},
		{"a.example", "", "name"},
		{"a.example", "10.0.0.1", "name"},
		{"a.test", "10.0.0.1", "network"},
		{"a.test", "", ""},
	} {
		at, _ := netip.ParseAddr(c.at)
		testutil.Equal(t, p.AllowedBy(c.host, 443, at), c.want, "%s at %q is allowed by", c.host, c.at)
	}
}

// More rules than can be told deny what depends on them, and nothing else.
func TestTooManyToTell(t *testing.T) {
	var deny []string
	for i := range 800 {
		deny = append(deny, fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))
	}
	p := testutil.Must(Parse(nil, deny))(t)
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(p.AskUnresolved("a.example", 1))), tunnel.FailDenied, "a name")
	testutil.Equal(t, testutil.Must(p.AskUnresolved("192.0.2.1", 1))(t), "", "an address")
	testutil.Fails(t, testutil.Err(Told("a.example\n")), "a line that is no rule is taken for one")
}

// Rules for the ports of one network, and for addresses in it, take memory for each rule, and
// not for each rule in each address.
func TestNetworksWithinNetworksTakeLittleMemory(t *testing.T) {
	const many = 4000
	var deny []string
	for i := range many {
		deny = append(deny, fmt.Sprintf("10.0.0.0/8:%d", 10_000+i), fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := testutil.Must(Parse(nil, deny))(t)
	runtime.ReadMemStats(&after)
	testutil.AtMost(t, after.TotalAlloc-before.TotalAlloc, 2*many*4<<10, "bytes of %d rules", len(deny))
	for address, denied := range map[string]bool{"10.0.1.1:1": true, "10.255.0.1:10000": true, "10.255.0.1:9999": false, "11.0.0.0:10000": false} {
		err := p.AllowAddr(netip.MustParseAddrPort(address))
		testutil.Equal(t, err != nil, denied, "%s is denied (%v)", address, err)
	}
}
