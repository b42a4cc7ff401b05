package httpsproxy

import (
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// addressed is a connection with a local address of choice.
type addressed struct {
	tunnel.Conn
	local net.Addr
}

func (c addressed) LocalAddr() net.Addr { return c.local }

func TestIsSelf(t *testing.T) {
	c := &client{conn: addressed{local: &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 8090}}}
	for _, tc := range []struct {
		host string
		port uint16
		want bool
	}{
		{"192.0.2.7", 8090, true},
		{"192.0.2.7", 8091, false},
		{"192.0.2.8", 8090, false},
		{"::ffff:192.0.2.7", 8090, true},
		{"3221225991", 8090, true}, // the same in one number
		{"0300.0.2.7", 8090, true}, // and in octal
		{"127.0.0.1", 8090, true},
		{"127.0.0.1", 443, false},
		{"::", 8090, true},
		{"localhost", 8090, true},
		{"localhost.example.test", 8090, false},
		{"example.test", 8090, false},
		{"1.2.3.4.5", 8090, false},
		{"192.0.520", 8090, false},
		{"fe80::1%eth0", 8090, false},
	} {
		testutil.Equal(t, c.isSelf(tc.host, tc.port), tc.want, "isSelf(%s, %d)", tc.host, tc.port)
	}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		ip := a.(*net.IPNet).IP
		testutil.Equal(t, c.isSelf(ip.String(), 8090), true, "%s is this machine's", ip)
	}
	unix := &client{conn: addressed{local: &net.UnixAddr{Name: "/x"}}}
	testutil.Equal(t, unix.isSelf("127.0.0.1", 8090), false, "a unix socket is itself")
}
