package tlsreload

import (
	"crypto/tls"
	"fmt"
)

// ParseVersion reads a minimum TLS version as Kubernetes components spell it:
// VersionTLS10 to VersionTLS13. Versions below TLS 1.2 are accepted, so that
// existing configurations still start, but raised to TLS 1.2, which every peer
// supports (RFC 8996 deprecates the older ones). "" is 0, the default.
func ParseVersion(name string) (uint16, error) {
	switch name {
	case "":
		return 0, nil
	case "VersionTLS10", "VersionTLS11", "VersionTLS12":
		return tls.VersionTLS12, nil
	case "VersionTLS13":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("unknown TLS version %q; use VersionTLS12 or VersionTLS13", name)
}

// ParseCipherSuites reads cipher suites by the names crypto/tls gives them.
// Unknown ones, and those known to be weak, are refused. No names are nil, the
// default. The list has no effect on TLS 1.3, whose suites are all good.
func ParseCipherSuites(names []string) ([]uint16, error) {
	known := map[string]uint16{}
	for _, suite := range tls.CipherSuites() {
		known[suite.Name] = suite.ID
	}
	var ids []uint16
	for _, name := range names {
		id, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("unknown or weak cipher suite %q; use one that Go's crypto/tls lists as secure, such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", name)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
