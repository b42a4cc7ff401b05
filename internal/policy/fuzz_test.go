package policy

import (
	"net/netip"
	"path"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

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
