package tunnel_test

import (
	"slices"
	"strings"
	"testing"

	"konnectivity/tunnel"
)

func TestIdentity(t *testing.T) {
	names := []string{"uri:spiffe://a.example/b", "dns:a.example", "cn:a b", "org:o", "serviceaccount:n/a", "socket:/run/a.sock", "uid:0"}
	who := tunnel.NewIdentity(names...)
	if got := who.Names(); !slices.Equal(got, names) {
		t.Errorf("the names %q have become %q", names, got)
	}
	if got := tunnel.CheckIdentity(string(who)); got != who {
		t.Errorf("sent as text, %q is %q", who, got)
	}
	if text := who.String(); strings.ContainsAny(text, "\n") {
		t.Errorf("shown as %q", text)
	}
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
		if who := tunnel.NewIdentity(names...); who != "" || who.Names() != nil {
			t.Errorf("%s: %q", what, who)
		}
	}
}

func FuzzCheckIdentity(f *testing.F) {
	f.Add(string(tunnel.NewIdentity("uri:spiffe://a.example/b", "uid:0")))
	f.Add("cn:a\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		who := tunnel.CheckIdentity(text)
		if len(who) > tunnel.IdentitySize || who != "" && string(who) != text {
			t.Errorf("%q is %q", text, who)
		}
		if again := tunnel.NewIdentity(who.Names()...); again != who {
			t.Errorf("%q is %q again", who, again)
		}
	})
}
