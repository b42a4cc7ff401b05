package agent

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"konnectivity/tunnel"
)

// identifierKinds are the keys a server may route by (upstream
// proto/header/header.go).
var identifierKinds = []string{"ipv4", "ipv6", "host", "cidr", "default-route"}

// ValidateIdentifiers says whether identifiers is a URL query of known keys, such
// as "host=node1&ipv4=192.0.2.1&cidr=192.0.2.0/24&default-route=true", of at most
// MaxIdentity bytes. The error says which part is wrong. An empty one is fine.
// Values are left to identifierWarnings, since upstream's agent starts with any.
func ValidateIdentifiers(identifiers string) error {
	if len(identifiers) > MaxIdentity {
		return fmt.Errorf("agent identifiers have %d bytes, more than %d", len(identifiers), MaxIdentity)
	}
	query, err := url.ParseQuery(identifiers)
	if err != nil {
		return fmt.Errorf("agent identifiers are not URL encoded (key=value&key=value): %w", err)
	}
	for kind := range query {
		if !slices.Contains(identifierKinds, kind) {
			return fmt.Errorf("agent identifier %q is unknown; known are %s", kind, strings.Join(identifierKinds, ", "))
		}
	}
	return nil
}

// identifierWarnings returns a sentence for each value that no server can route
// by, sorted. The agent works without it, but not as its operator meant.
func identifierWarnings(identifiers string) []string {
	query, err := url.ParseQuery(identifiers)
	if err != nil {
		return nil
	}
	var warnings []string
	for kind, values := range query {
		for _, value := range values {
			if want := identifierFault(kind, value); want != "" {
				warnings = append(warnings, fmt.Sprintf("agent identifier %s=%q is not %s and routes nothing here", kind, value, want))
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}

// identifierFault returns what value should have been, or "" where it is in
// order. An IPv6 address under ipv4, or the reverse, is: on a cluster of the
// other family, manifests put it there, and servers compare it all the same.
func identifierFault(kind, value string) string {
	ok, want := true, ""
	switch kind {
	case "ipv4", "ipv6":
		_, err := netip.ParseAddr(value)
		ok, want = err == nil, "an IP address"
	case "host":
		ok, want = tunnel.ValidHost(value), "a host name"
	case "cidr":
		_, err := netip.ParsePrefix(value)
		ok, want = err == nil, "a CIDR such as 192.0.2.0/24"
	case "default-route":
		_, err := strconv.ParseBool(value) // as servers do
		ok, want = err == nil, "true or false"
	}
	if ok {
		return ""
	}
	return want
}
