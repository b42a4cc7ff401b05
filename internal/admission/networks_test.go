package admission

import (
	"net"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestNetworks(t *testing.T) {
	n := testutil.Must(ParseNetworks([]string{"10.1.2.3/8", "192.0.2.1", "2001:db8::/32", "::ffff:198.51.100.0/120", "::ffff:203.0.113.1", "fe80::1"}))(t)
	for text, want := range map[string]bool{
		"10.255.0.1:1":         true,
		"11.0.0.1:1":           false,
		"[::ffff:10.0.0.1]:1":  true, // as a socket of both families has it
		"192.0.2.1:1":          true,
		"192.0.2.2:1":          false,
		"[2001:db8:ffff::1]:1": true,
		"[2001:db9::1]:1":      false,
		"198.51.100.255:1":     true,
		"198.51.101.0:1":       false,
		"203.0.113.1:1":        true,
		"[fe80::1%eth0]:1":     true,
		"[fe80::2%eth0]:1":     false,
	} {
		addr := testutil.Must(net.ResolveTCPAddr("tcp", text))(t)
		testutil.Equal(t, n.Contains(addr), want, "%s", text)
	}
	for _, addr := range []net.Addr{nil, &net.UnixAddr{Name: "/s", Net: "unix"}, &net.TCPAddr{}} {
		testutil.Holds(t, !n.Contains(addr), "%v is in %v", addr, n)
	}
	testutil.Holds(t, !(Networks)(nil).Contains(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}) && !n.HasAll(),
		"no network holds an address, or these hold all")
}

func TestNetworksHasAll(t *testing.T) {
	for _, text := range []string{"0.0.0.0/0", "::/0"} {
		n, err := ParseNetworks([]string{"192.0.2.1", text})
		testutil.Holds(t, err == nil && n.HasAll(), "%s: %v, %v", text, n, err)
	}
}

func TestParseNetworksRefuses(t *testing.T) {
	for _, text := range []string{"", "10.0.0.0/33", "10.0.0", "example.com", "10.0.0.1:80", "10.0.0.0/8 ", "fe80::1%eth0", "::ffff:10.0.0.0/64"} {
		n, err := ParseNetworks([]string{"192.0.2.1", text})
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), "CIDR"), "%q: %v, %v", text, n, err)
	}
}

// text is an address of a type that this package does not know.
type text string

func (text) Network() string { return "tcp" }

func (t text) String() string { return string(t) }

func TestSourceOf(t *testing.T) {
	const none = "invalid Prefix"
	for _, tc := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 7}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 7}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3::4"), Port: 7}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 7}, "fe80::/64"},
		{&net.TCPAddr{}, none},
		{text("192.0.2.1:7"), "192.0.2.1/32"},
		{text("[2001:db8::1%eth0]:7"), "2001:db8::/64"},
		{text("pipe"), none},
		{&net.UnixAddr{Name: "@", Net: "unix"}, none},
		{(*net.TCPAddr)(nil), none},
		{nil, none},
	} {
		testutil.Equal(t, SourceOf(tc.addr).String(), tc.want, "%v is of", tc.addr)
	}
}
