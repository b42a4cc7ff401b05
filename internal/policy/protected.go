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

// guarded is protected addresses, and the block in which an allow rule for them shows intent.
type guarded struct {
	block netip.Prefix
	addrs []netip.Prefix
}

// alone returns a protected prefix that is its own block.
func alone(prefix string) guarded {
	addrs := netip.MustParsePrefix(prefix)
	return guarded{addrs, []netip.Prefix{addrs}}
}

// protected lists the addresses at which cloud machines hand out credentials to
// every process that can reach them. A tunnel that ends on such a machine would lend
// the machine's identity to every client. The rest of 169.254.0.0/16 stays
// open, since node-local DNS caches live there. fe80::/10 is closed whole:
// metadata services answer there too, and no destination behind a router can
// have such an address. Where such an address is an ordinary one, only a rule
// for that very address permits it.
var protected = []guarded{
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
	alone("100.100.100.200/32"),     // Alibaba
	alone("168.63.129.16/32"),       // Azure's WireServer, which hands out a machine's extensions' secrets
	alone("fd00:42::42/128"),        // Scaleway
	alone("fd00:c1::a9fe:a9fe/128"), // Oracle
	alone("fd00:100::100:200/128"),  // Alibaba
	alone("fd00:a9fe:a9fe::1/128"),  // Akamai, where machines' user data has secrets
	{netip.MustParsePrefix("fd20:ce::/32"), []netip.Prefix{
		netip.MustParsePrefix("fd20:ce::254/128"), // Google
	}},
	alone("fe80::/10"),
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
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052 §2.1
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	loopback4  = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// embedded is in which bytes an address of nat64Local has the IPv4 address, if a
// translator has /48, /56, /64 or /96 of it (RFC 6052 §2.2). Which of them it has,
// nothing tells.
var embedded = [...][4]int{{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}}

// plain returns addr in the form in which equal addresses compare equal:
// without a zone, and as IPv4 if it is IPv4 mapped to IPv6.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// maxViews is the most addresses that views returns.
const maxViews = 1 + len(embedded)

// views stores into all every address that a dial to addr may end at, so that
// none can be denied and yet reached: the unspecified address is the machine
// itself, and a NAT64 address is the IPv4 address in its last four bytes, or what may
// be one in those of embedded.
func views(addr netip.Addr, all *[maxViews]netip.Addr) []netip.Addr {
	addr = plain(addr)
	views := append(all[:0], addr)
	switch {
	case addr.IsUnspecified():
		views = append(views, loopback4, netip.IPv6Loopback())
	case nat64.Contains(addr):
		b := addr.As16()
		views = append(views, netip.AddrFrom4([4]byte(b[12:])))
	case nat64Local.Contains(addr):
		b := addr.As16()
		for _, at := range embedded {
			if b[at[0]] != 0 { // 0.0.0.0/8 is unused: zero is the padding of another form
				views = append(views, netip.AddrFrom4([4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]}))
			}
		}
	}
	return views
}
