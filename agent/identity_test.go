package agent

import (
	"crypto/tls"
	"strings"
	"testing"

	"konnectivity/agent/egress"
	"konnectivity/internal/testutil"
)

func TestValidateIdentifiers(t *testing.T) {
	for identifiers, want := range map[string]string{ // "" for valid
		"": "",
		"host=node1&ipv4=192.0.2.1&ipv4=192.0.2.2&ipv6=2001:db8::1&cidr=192.0.2.0/24&default-route=true": "",
		"default-route=true":                  "",
		"ipv6=:::::":                          "", // upstream's own example
		"mac=00:11":                           `"mac" is unknown`,
		"=x":                                  `"" is unknown`,
		"host=%zz":                            "URL encoded",
		"host=a;ipv4=b":                       "URL encoded",
		"host=" + strings.Repeat("a", 10<<10): "more than",
	} {
		err := ValidateIdentifiers(identifiers)
		testutil.ErrorSays(t, err, want, "%.40q", identifiers)
	}
}

func TestIdentifierWarnings(t *testing.T) {
	for identifiers, want := range map[string]int{
		"host=node1&ipv4=192.0.2.1&ipv6=2001:db8::1&cidr=192.0.2.0/24&default-route=true": 0,
		"ipv4=2001:db8::1&ipv6=192.0.2.1":                                                 0, // clusters of the other family do that
		"ipv4=":                                                                           1,
		"ipv6=:::::&ipv4=10.0.0.1":                                                        1,
		"host=a b&host=":                                                                  2,
		"cidr=192.0.2.0":                                                                  1,
		"default-route=True&default-route=maybe":                                          1,
		"host=%zz":                                                                        0,
	} {
		if got := identifierWarnings(identifiers); len(got) != want {
			t.Errorf("%q: %q, want %d", identifiers, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	good := func() Options {
		return Options{ID: "a", Servers: []string{"s:1"}, TLS: func(string, ...string) *tls.Config { return nil }, Dialer: egress.New(egress.Options{})}
	}
	testutil.Must(New(good()))(t)
	for name, spoil := range map[string]func(*Options){
		"no id":          func(o *Options) { o.ID = "" },
		"huge id":        func(o *Options) { o.ID = strings.Repeat("a", MaxIdentity+1) },
		"no server":      func(o *Options) { o.Servers = nil },
		"server":         func(o *Options) { o.Servers = []string{"s"} },
		"no TLS":         func(o *Options) { o.TLS = nil },
		"no dialer":      func(o *Options) { o.Dialer = nil },
		"identifiers":    func(o *Options) { o.Identifiers = "x=y" },
		"link mode":      func(o *Options) { o.Link = "perhaps" },
		"count source":   func(o *Options) { o.CountSource = "stars" },
		"sync intervals": func(o *Options) { o.SyncInterval, o.SyncIntervalCap = 2, 1 },
	} {
		o := good()
		spoil(&o)
		testutil.Fails(t, testutil.Err(New(o)), "%s: accepted", name)
	}
}
