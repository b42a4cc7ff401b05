package registry

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"konnectivity/tunnel"
)

const (
	// MaxIdentifiersText bounds the text of an agent's identifiers; 600 IPv6
	// addresses fit. It is parsed before the agent is trusted with anything.
	MaxIdentifiersText = 32 << 10

	// maxIdentifiers bounds how many an agent may have, so that one agent
	// cannot fill the index.
	maxIdentifiers = 1024
)

// Identifiers are what an agent says it can reach, parsed. Addresses are in
// their one canonical form: IPv4-mapped IPv6 is IPv4, hosts are lower case
// without a trailing dot, prefixes are masked; each list is sorted and has
// nothing twice.
type Identifiers struct {
	Addrs        []netip.Addr
	Hosts        []string
	CIDRs        []netip.Prefix
	DefaultRoute bool
}

// Len is how many there are in the lists.
func (ids Identifiers) Len() int { return len(ids.Addrs) + len(ids.Hosts) + len(ids.CIDRs) }

// ParseIdentifiers reads the agentIdentifiers metadata: a URL query
// (ipv4=..&ipv6=..&host=..&cidr=..&default-route=true) whose keys may repeat.
// As on upstream's server (proto/header/header.go), unknown keys are ignored, and so
// are values that cannot be routed, like the ipv4=$(HOST_IP) of a manifest whose
// variable is not set: the agent still serves by its other identifiers, and by the
// strategy default. The empty text is no identifiers.
func ParseIdentifiers(text string) (Identifiers, error) {
	return parse(text, false)
}

// ParseGrants is ParseIdentifiers for what an operator of the server has written:
// a value that is none of its key's kind is an error that names it.
func ParseGrants(text string) (Identifiers, error) {
	return parse(text, true)
}

// parse refuses a value that is none of its key's kind if strict, and else passes over it.
func parse(text string, strict bool) (Identifiers, error) {
	var ids Identifiers
	if len(text) > MaxIdentifiersText {
		return ids, fmt.Errorf("agent identifiers of %d bytes: at most %d are accepted", len(text), MaxIdentifiersText)
	}
	query, err := url.ParseQuery(text)
	if err != nil {
		return ids, fmt.Errorf("agent identifiers are not a URL query (key=value&key=value): %w", err)
	}
	count := 0
	for key, values := range query {
		if count += len(values); count > maxIdentifiers {
			return Identifiers{}, fmt.Errorf("more than %d agent identifiers", maxIdentifiers)
		}
		for _, value := range values {
			if err := ids.add(key, value); err != nil && strict {
				return Identifiers{}, err
			}
		}
	}
	slices.SortFunc(ids.Addrs, netip.Addr.Compare)
	slices.SortFunc(ids.CIDRs, netip.Prefix.Compare)
	slices.Sort(ids.Hosts)
	ids.Addrs, ids.CIDRs, ids.Hosts = slices.Compact(ids.Addrs), slices.Compact(ids.CIDRs), slices.Compact(ids.Hosts)
	return ids, nil
}

// add adds one, unless its value is none of its key's kind. An address may have
// either key: on a cluster of the other family, manifests put it under this one.
func (ids *Identifiers) add(key, value string) error {
	switch key {
	case "ipv4", "ipv6":
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return fmt.Errorf("agent identifier %s=%.64q is not an IP address", key, value)
		}
		ids.Addrs = append(ids.Addrs, addr.Unmap())
	case "host":
		host, addr := canonical(value)
		switch {
		case addr.IsValid():
			ids.Addrs = append(ids.Addrs, addr)
		case !tunnel.ValidHost(host):
			return fmt.Errorf("agent identifier host=%.64q is not a host name", value)
		default:
			ids.Hosts = append(ids.Hosts, host)
		}
	case "cidr":
		prefix, err := tunnel.ParseCIDR(value)
		if err != nil {
			return fmt.Errorf("agent identifier cidr=%.64q is not a CIDR", value)
		}
		ids.CIDRs = append(ids.CIDRs, prefix)
	case "default-route":
		yes, err := strconv.ParseBool(value) // as upstream reads it
		if err != nil && value != "" {
			return fmt.Errorf("agent identifier default-route=%.64q: must be true or false", value)
		}
		ids.DefaultRoute = ids.DefaultRoute || yes
	}
	return nil
}

// canonical is a host of an address in the one form it is compared in: an
// address if it is one, else a lower-case name without the root's dot, however
// often that was written.
func canonical(host string) (string, netip.Addr) {
	host = strings.TrimRight(host, ".")
	if addr, ok := tunnel.ParseIP(host); ok {
		return "", addr.Unmap()
	}
	return strings.ToLower(host), netip.Addr{}
}
