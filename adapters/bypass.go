package adapters

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"konnectivity/tunnel"
)

// cloudSuffixes are the domains of cloud APIs that HyperShift's sidecars
// know.
func cloudSuffixes() []string {
	return []string{
		"amazonaws.com", "c2s.ic.gov", "hci.ic.gov", "sc2s.sgov.gov", // AWS and its partitions
		"microsoftonline.com", "azure.com", // Azure
		"cloud.ibm.com", // IBM Cloud
	}
}

// bypass knows which hosts are reached without the tunnel. The zero bypass
// knows none. It is immutable.
type bypass struct {
	suffixes []string
	exempt   []string
}

// newBypass makes a bypass for hosts that are, or are under, one of the
// suffixes; "example.com", ".example.com" and "*.example.com" mean the same.
// Hosts in exempt are never bypassed.
func newBypass(suffixes, exempt []string) (*bypass, error) {
	b := new(bypass)
	for _, text := range suffixes {
		suffix := tunnel.CanonicalHost(strings.TrimLeft(strings.TrimPrefix(text, "*"), "."))
		if _, err := netip.ParseAddr(suffix); err == nil || !tunnel.ValidHost(suffix) || strings.ContainsAny(suffix, "*:") {
			return nil, fmt.Errorf("want a domain name, got %q", text)
		}
		b.suffixes = append(b.suffixes, suffix)
	}
	for _, host := range exempt {
		b.exempt = append(b.exempt, tunnel.CanonicalHost(host))
	}
	return b, nil
}

// matches says whether host is to be reached directly. Case and a final dot
// make no difference.
func (b *bypass) matches(host string) bool {
	host = tunnel.CanonicalHost(host)
	if slices.Contains(b.exempt, host) {
		return false
	}
	return slices.ContainsFunc(b.suffixes, func(suffix string) bool {
		return host == suffix || strings.HasSuffix(host, "."+suffix)
	})
}
