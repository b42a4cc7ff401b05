package agent

import (
	"strings"
	"testing"

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
		testutil.ErrorSays(t, ValidateIdentifiers(identifiers), want, "%.40q", identifiers)
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
		testutil.Equal(t, len(identifierWarnings(identifiers)), want, "%q", identifiers)
	}
}
