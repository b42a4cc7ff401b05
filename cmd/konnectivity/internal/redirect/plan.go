// Package redirect makes the kernel send connections to given networks to a
// sidecar's transparent port, by nftables, and undoes it.
package redirect

import (
	"fmt"
	"net/netip"
	"strings"

	"konnectivity/internal/cli"
	"konnectivity/internal/nameserver"
)

// Plan says which connections are redirected.
type Plan struct {
	To     []netip.Prefix // redirected destinations
	Except []netip.Prefix // exceptions from To
	DNS    []netip.Addr   // nameservers, whose port 53 is excepted
	UID    uint32         // the sidecar's user, whose connections are excepted
	Port   uint16         // of the sidecar
}

// maxNetworks bounds each kind of rule. The kernel compares every new connection with
// each rule, and confirms each rule when it is set; the confirmations must fit into
// readBuffer.
const maxNetworks = 64

// linkLocal are addresses of this machine's own links, and of what its cloud has there, such
// as metadata. They are left alone whatever network they are in.
var linkLocal = [...]netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// neverSent has networks that are never in the hosted cluster.
var neverSent = []struct {
	network netip.Prefix
	why     string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback is never redirected"},
	{netip.MustParsePrefix("::1/128"), "loopback is never redirected"},
	{linkLocal[0], "link-local addresses are never redirected"},
	{linkLocal[1], "link-local addresses are never redirected"},
	{netip.MustParsePrefix("224.0.0.0/4"), "no connection goes to a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "no connection goes to a multicast address"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "write it as IPv4"},
}

// Networks parses CIDRs. Its error is a usage error about the first that cannot be
// redirected.
func Networks(texts []string) ([]netip.Prefix, error) {
	if len(texts) > maxNetworks {
		return nil, cli.Usagef("%d networks are given, and %d is the most: combine some", len(texts), maxNetworks)
	}
	var networks []netip.Prefix
	for _, text := range texts {
		network, err := parse(text)
		if err != nil {
			return nil, cli.Usagef("%q: %w", text, err)
		}
		networks = append(networks, network)
	}
	return networks, nil
}

func parse(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("want a network; for this address alone, write %s/%d", ip, ip.BitLen())
	}
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("want a network such as 10.128.0.0/14 or fd01::/48")
	case network != network.Masked():
		return netip.Prefix{}, fmt.Errorf("the address has bits beyond the first %d; did you mean %s?", network.Bits(), network.Masked())
	}
	for _, never := range neverSent {
		if never.network.Bits() <= network.Bits() && never.network.Contains(network.Addr()) {
			return netip.Prefix{}, fmt.Errorf("%s", never.why)
		}
	}
	return network, nil
}

// Nameservers returns the nameservers of a resolv.conf, as packets name them.
func Nameservers(text []byte) []netip.Addr {
	servers := nameserver.Servers(text)
	servers = servers[:min(len(servers), maxNetworks)]
	for i, ip := range servers {
		servers[i] = ip.Unmap().WithZone("")
	}
	return servers
}

// String describes the applied plan in one line.
func (p *Plan) String() string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "TCP connections to %s now go to port %d of loopback; not those of user %d", join(p.To), p.Port, p.UID)
	if len(p.DNS) > 0 {
		fmt.Fprintf(b, ", to DNS at %s", join(p.DNS))
	}
	if len(p.Except) > 0 {
		fmt.Fprintf(b, ", to %s", join(p.Except))
	}
	b.WriteString(", to link-local addresses, and to this machine itself")
	return b.String()
}

func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}
