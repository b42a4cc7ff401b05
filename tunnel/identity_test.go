package tunnel_test

import (
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestIdentity(t *testing.T) {
	names := []string{"uri:spiffe://a.example/b", "dns:a.example", "cn:a b", "org:o", "serviceaccount:n/a", "socket:/run/a.sock", "uid:0"}
	who := tunnel.NewIdentity(names...)
	testutil.EqualSlices(t, who.Names(), names, "the names")
	testutil.Equal(t, tunnel.CheckIdentity(string(who)), who, "the identity, sent as text")
	testutil.Equal(t, strings.ContainsAny(who.String(), "\n"), false, "%q has lines", who)
}

// What is no identity, or not a whole one, is none: a part of it must not pass for all.
func TestNoIdentity(t *testing.T) {
	for what, names := range map[string][]string{
		"nothing":        nil,
		"a kind alone":   {"cn:"},
		"no kind":        {"cn:a", "admin"},
		"another kind":   {"user:a"},
		"two in one":     {"cn:a\nuid"},
		"an empty line":  {"cn:a", ""},
		"a control":      {"cn:a\x00b"},
		"not UTF-8":      {"cn:a\xff"},
		"too many bytes": {"cn:a", "org:" + strings.Repeat("o", tunnel.IdentitySize)},
	} {
		who := tunnel.NewIdentity(names...)
		testutil.Holds(t, who == "" && who.Names() == nil, "%s: no identity: %q", what, who)
	}
}

func FuzzCheckIdentity(f *testing.F) {
	f.Add(string(tunnel.NewIdentity("uri:spiffe://a.example/b", "uid:0")))
	f.Add("cn:a\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		who := tunnel.CheckIdentity(text)
		testutil.Holds(t, len(who) <= tunnel.IdentitySize && (who == "" || string(who) == text), "%q is %q", text, who)
		testutil.Equal(t, tunnel.NewIdentity(who.Names()...), who, "the identity of its names")
	})
}
