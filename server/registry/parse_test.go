package registry

import (
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestParseStrategies(t *testing.T) {
	for list, want := range map[string][]Strategy{
		"default":                 {Default},
		"destHost,defaultRoute":   {DestHost, DefaultRoute},
		"destHost, ,destCIDR,":    {DestHost, DestCIDR},
		"default,default":         {Default},
		"destCIDR,destHost":       {DestCIDR, DestHost},
		"":                        nil,
		",":                       nil,
		"desthost":                nil,
		"default,random":          nil,
		"default;destHost":        nil,
		"destHost,default,destX,": nil,
	} {
		got, err := ParseStrategies(list)
		testutil.Holds(t, (err != nil) == (want == nil) && (want == nil || reflect.DeepEqual(got, want)),
			"%q: %v, %v", list, got, err)
		testutil.Holds(t, err == nil || strings.Contains(err.Error(), "destCIDR"),
			"%q: the sentence does not say what is accepted: %v", list, err)
	}
}

func TestParseIdentifiers(t *testing.T) {
	addr := netip.MustParseAddr
	for text, want := range map[string]Identifiers{
		"":                                  {},
		"default-route=true":                {DefaultRoute: true},
		"default-route=false":               {},
		"unknown=1&uid=5":                   {},
		"ipv4=1.2.3.4&ipv6=::":              {Addrs: []netip.Addr{addr("1.2.3.4"), addr("::")}},
		"ipv4=::ffff:1.2.3.4&ipv4=1.2.3.4":  {Addrs: []netip.Addr{addr("1.2.3.4")}},
		"host=A.b.&host=a.B&host=c":         {Hosts: []string{"a.b", "c"}},
		"cidr=10.1.2.3/8":                   {CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		"cidr=::ffff:10.1.2.3/104":          {CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		"cidr=fd00::1/64&cidr=fd00::2%2F64": {CIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}},
		"ipv4=2001:db8::1&ipv6=1.2.3.4":     {Addrs: []netip.Addr{addr("1.2.3.4"), addr("2001:db8::1")}}, // either key
		"default-route=True":                {DefaultRoute: true},
		"default-route=":                    {},
		"default-route=t&default-route=f":   {DefaultRoute: true},
		"host=b&host=a&host=b":              {Hosts: []string{"a", "b"}},
		"cidr=fd00::/8&cidr=10.0.0.0/8&cidr=fd00::/8": {CIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		"default-route=1": {DefaultRoute: true},
	} {
		for name, parse := range map[string]func(string) (Identifiers, error){"agent": ParseIdentifiers, "grant": ParseGrants} {
			got, err := parse(text)
			testutil.Holds(t, err == nil && reflect.DeepEqual(normal(got), normal(want)),
				"%s %q: %+v, %v", name, text, got, err)
		}
	}
	for text, says := range map[string]string{
		"ipv4=%zz":                      "URL query",
		"ipv4=1.2.3.4;host=a":           "URL query",
		strings.Repeat("x", 33<<10):     "at most 32768",
		strings.Repeat("&host=a", 1025): "more than 1024",
	} {
		got, err := ParseIdentifiers(text)
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), says) && len(err.Error()) <= 300,
			"%.60q: %+v, %v, want an error with %q", text, got, err, says)
	}
}

// What upstream's server passes over does not keep an agent out here; what an
// operator grants must be in order.
func TestParseIdentifiersOfNoUse(t *testing.T) {
	for text, says := range map[string]string{
		"ipv4=":                             "ipv4=",
		"ipv4=$(HOST_IP)":                   "ipv4=",
		"ipv4=1.2.3":                        "ipv4=",
		"ipv6=:::::":                        "ipv6=", // upstream's own example
		"host=":                             "host=",
		"host=a%00b":                        "host=",
		"host=a\r\nX: y":                    "host=",
		"host=" + strings.Repeat("x", 300):  "host=",
		"cidr=10.0.0.0":                     "cidr=",
		"cidr=10.0.0.0/33":                  "cidr=",
		"default-route=maybe":               "true or false",
		"ipv4=" + strings.Repeat("9", 1000): "ipv4=",
		"a=1&ipv4=nonsense&b=22":            "nonsense",
	} {
		got, err := ParseIdentifiers(text + "&ipv4=10.0.0.1&default-route=t")
		testutil.Holds(t, err == nil && got.Len() == 1 && got.DefaultRoute,
			"agent %.60q: %+v, %v, want the rest", text, got, err)
		got, err = ParseGrants(text + "&ipv4=10.0.0.1")
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), says) && len(err.Error()) <= 300,
			"grant %.60q: %+v, %v, want an error with %q", text, got, err, says)
	}
}

func normal(ids Identifiers) Identifiers {
	if len(ids.Addrs) == 0 {
		ids.Addrs = nil
	}
	if len(ids.Hosts) == 0 {
		ids.Hosts = nil
	}
	if len(ids.CIDRs) == 0 {
		ids.CIDRs = nil
	}
	return ids
}

// FuzzParseIdentifiers: never a panic, bounded results, and what was accepted
// survives being written out and read again.
func FuzzParseIdentifiers(f *testing.F) {
	for _, v := range []url.Values{
		{"ipv4": {"10.0.0.1", "::ffff:1.2.3.4"}, "host": {"a.example"}, "default-route": {"true"}},
		{"ipv6": {"fe80::1%eth0"}, "cidr": {"10.0.0.0/8", "::/0"}, "other": {"x"}},
	} {
		f.Add(v.Encode())
	}
	f.Add("ipv4=&&&=;%")
	f.Add("host=000..&host=1.2.3.4.")
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := ParseIdentifiers(text)
		if err != nil {
			return
		}
		testutil.Requires(t, len(ids.Addrs)+len(ids.Hosts)+len(ids.CIDRs) <= maxIdentifiers, "too many")
		v := url.Values{}
		for _, a := range ids.Addrs {
			key := "ipv6"
			if a.Is4() {
				key = "ipv4"
			}
			v.Add(key, a.String())
		}
		for _, h := range ids.Hosts {
			v.Add("host", h)
		}
		for _, p := range ids.CIDRs {
			v.Add("cidr", p.String())
		}
		if ids.DefaultRoute {
			v.Add("default-route", "true")
		}
		if len(v.Encode()) > MaxIdentifiersText {
			return // escaping made it longer
		}
		again, err := ParseIdentifiers(v.Encode())
		testutil.Requires(t, err == nil && reflect.DeepEqual(normal(again), normal(ids)),
			"%+v read again is %+v, %v", ids, again, err)
	})
}
