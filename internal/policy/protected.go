package policy

import (
	"errors"
	"net/netip"
	"slices"
)

var (
	errNoRule    = errors.New("no allow rule matches")
	errProtected = errors.New("the address hands out cloud credentials; only an allow rule for exactly it or its link-local block permits it")
)

// protected lists the addresses at which cloud machines hand out credentials to
// anybody who can reach them. A tunnel that ends on such a machine would lend
// the machine's identity to every client. The rest of 169.254.0.0/16 stays
// open, since node-local DNS caches live there. fe80::/10 is closed whole:
// metadata services answer there too, and no destination behind a router can
// have such an address. Where such an address is an ordinary one, only a rule
// for that very address permits it.
var protected = []struct {
	block netip.Prefix // an allow rule within it shows intent
	addrs []netip.Prefix
}{
	{netip.MustParsePrefix("169.254.0.0/16"), []netip.Prefix{
		netip.MustParsePrefix("169.254.169.254/32"), // AWS, Azure, Google, IBM, Oracle, OpenStack, DigitalOcean and others
		netip.MustParsePrefix("169.254.169.252/32"), // Google GKE: where workload identity answers
		netip.MustParsePrefix("169.254.0.23/32"),    // Tencent
		netip.MustParsePrefix("169.254.42.42/32"),   // Scaleway
		netip.MustParsePrefix("169.254.170.2/32"),   // AWS ECS task roles
		netip.MustParsePrefix("169.254.170.23/32"),  // AWS EKS pod identity
	}},
	{netip.MustParsePrefix("fd00:ec2::/32"), []netip.Prefix{
		netip.MustParsePrefix("fd00:ec2::254/128"), // AWS
		netip.MustParsePrefix("fd00:ec2::23/128"),  // AWS EKS pod identity
	}},
	{netip.MustParsePrefix("100.100.100.200/32"), []netip.Prefix{
		netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	}},
	{netip.MustParsePrefix("168.63.129.16/32"), []netip.Prefix{
		netip.MustParsePrefix("168.63.129.16/32"), // Azure's WireServer, which hands out a machine's extensions' secrets
	}},
	{netip.MustParsePrefix("fd00:42::42/128"), []netip.Prefix{
		netip.MustParsePrefix("fd00:42::42/128"), // Scaleway
	}},
	{netip.MustParsePrefix("fd20:ce::/32"), []netip.Prefix{
		netip.MustParsePrefix("fd20:ce::254/128"), // Google
	}},
	{netip.MustParsePrefix("fe80::/10"), []netip.Prefix{
		netip.MustParsePrefix("fe80::/10"),
	}},
}

func protectedBlock(addr netip.Addr) (netip.Prefix, bool) {
	for _, p := range protected {
		if slices.ContainsFunc(p.addrs, func(a netip.Prefix) bool { return a.Contains(addr) }) {
			return p.block, true
		}
	}
	return netip.Prefix{}, false
}

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052 §2.1
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// plain returns addr in the form in which equal addresses compare equal:
// without a zone, and as IPv4 if it is IPv4 mapped to IPv6.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// maxViews is the most addresses that views returns.
const maxViews = 3

// views stores into all every address that a dial to addr may end at, so that
// none can be denied and yet reached: the unspecified address is the machine
// itself, and a NAT64 address is the IPv4 address in its last four bytes.
func views(addr netip.Addr, all *[maxViews]netip.Addr) []netip.Addr {
	addr = plain(addr)
	views := append(all[:0], addr)
	switch {
	case addr.IsUnspecified():
		views = append(views, loopback4, netip.IPv6Loopback())
	case nat64.Contains(addr):
		b := addr.As16()
		views = append(views, netip.AddrFrom4([4]byte(b[12:])))
	}
	return views
}
