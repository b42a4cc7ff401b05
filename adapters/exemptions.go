package adapters

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"konnectivity/tunnel"
)

// exemptions decide which destinations are exempt from a proxy. It supports what
// httpproxy does (suffixes, exact names with a leading dot left out, addresses,
// CIDRs, ports, "*"; localhost and loopback are always exempt), and also
// spellings that httpproxy would miss: trailing dots, capitals, bracketed and
// IPv4-mapped addresses, entries separated by spaces. A CIDR matches addresses
// only: names are not resolved for it.
type exemptions struct {
	proxied func(*url.URL) (*url.URL, error)
}

// newExemptions parses a list in the format of NO_PROXY. Entries that make no
// sense exempt nothing.
func newExemptions(list string) *exemptions {
	var entries []string
	for _, entry := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		if entry = tidyEntry(entry); entry != "" {
			entries = append(entries, entry)
		}
	}
	// A decision needs some proxy to apply to; which one does not matter here.
	cfg := httpproxy.Config{HTTPSProxy: "http://proxy.invalid", NoProxy: strings.Join(entries, ",")}
	return &exemptions{proxied: cfg.ProxyFunc()}
}

// tidyEntry spells one entry as httpproxy expects it.
func tidyEntry(entry string) string {
	if entry == "*" {
		return entry
	}
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		return prefix.String()
	}
	host, port, err := net.SplitHostPort(entry)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(entry, "["), "]"), ""
	}
	if host = tidyHost(host); host == "" || host == "*" { // "*." is not "*"
		return ""
	}
	if port != "" {
		return net.JoinHostPort(host, port)
	}
	return host
}

func tidyHost(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.WithZone("").Unmap().String()
	}
	return tunnel.CanonicalHost(host)
}

// exempts reports whether host and port are to be reached without the proxy.
func (n *exemptions) exempts(host string, port uint16) bool {
	u := &url.URL{Scheme: "https", Host: tunnel.JoinAddress(tidyHost(host), port)}
	proxy, err := n.proxied(u)
	return err == nil && proxy == nil
}
