package admission

import (
	"net"
	"testing"

	"konnectivity/internal/testutil"
)

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
