package tunnel

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxHost is the longest host name DNS allows (RFC 1035 §2.3.4), a trailing
// dot not counted.
const maxHost = 253

// maxPort is the longest port. A port with many zeros in front is none, so that an
// address has a bound.
const maxPort = len("65535")

// Addr is an address at the far end of a tunnel, known only by its text.
type Addr struct {
	Net  string // "tcp"
	Text string // host:port
}

// Network implements net.Addr.
func (a Addr) Network() string { return a.Net }

// String implements net.Addr.
func (a Addr) String() string { return a.Text }

// SplitAddress takes host:port apart and refuses what no dialer should be
// asked for: an empty or overlong host, control characters, spaces, a port
// that is not 1 to 65535. The error is a *DialError with FailBadAddress. An
// IPv6 host comes without its brackets.
func SplitAddress(address string) (host string, port uint16, err error) {
	bad := func(why string) (string, uint16, error) {
		return "", 0, &DialError{Failure: FailBadAddress, Reason: "bad address: " + why}
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return bad("want host:port")
	}
	if !ValidHost(host) {
		return bad("the host is empty, longer than 253 characters, or has characters no host has")
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || len(text) > maxPort {
		return bad("the port is not a number from 1 to 65535")
	}
	return host, uint16(n), nil
}

// ValidHost says whether host can be an IP address or a name: it is not empty,
// not overlong, and has no character that would change its meaning on the way
// (controls, spaces, and the separators of URLs). Underscores and any letters
// pass, since resolvers differ on them. Brackets do not belong to a host, nor
// does a port.
func ValidHost(host string) bool {
	if len(strings.TrimSuffix(host, ".")) > maxHost || strings.Trim(host, ".") == "" {
		return false
	}
	for _, r := range host {
		// A text that is not UTF-8 cannot travel in a protobuf string.
		if r == utf8.RuneError || r <= ' ' || r == 0x7f || strings.ContainsRune(`/\@?#[]"<>`, r) {
			return false
		}
	}
	if strings.IndexByte(host, ':') >= 0 {
		_, isAddr := ParseIP(host)
		return isAddr
	}
	return true
}

// CanonicalHost returns host in the spelling in which names are compared: in lower case, without
// a dot at the end. More than one dot there makes it another name.
func CanonicalHost(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// IsLocalhost reports whether host, in any spelling, is a name of the machine that looks it up
// (RFC 6761 §6.3).
func IsLocalhost(host string) bool {
	host = CanonicalHost(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// ParseIP reads host as an address and says whether it is one. Unlike
// netip.ParseAddr it makes no error of the names that most hosts are.
func ParseIP(host string) (netip.Addr, bool) {
	if strings.IndexByte(host, ':') < 0 && strings.Trim(host, "0123456789.") != "" {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(host)
	return addr, err == nil
}

// ParseCIDR reads a network in the form in which equal ones compare equal: as IPv4 if it is
// IPv4 mapped to IPv6, and without the bits behind its length.
func ParseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), err
}

// ParseLooseIP is ParseIP that also knows what some resolvers and proxies take for an
// IPv4 address: fewer than four parts, parts in hexadecimal or octal, as inet_aton(3),
// and dots at the end. It allocates nothing for names that end as most do.
func ParseLooseIP(host string) (netip.Addr, bool) {
	if addr, ok := ParseIP(host); ok {
		return addr, true
	}
	host = strings.TrimRight(host, ".")
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] < '0' || last[0] > '9' {
		return netip.Addr{}, false
	}
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		bits := 8
		if last := i == len(parts)-1; last {
			bits = 8 * (5 - len(parts))
		}
		n, err := strconv.ParseUint(part, 0, bits)
		if err != nil || strings.ContainsRune(part, '_') {
			return netip.Addr{}, false
		}
		value = value<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// JoinAddress is net.JoinHostPort for a numeric port.
func JoinAddress(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
