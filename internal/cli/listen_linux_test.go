package cli_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// Accepted connections hold as few unsent bytes as their listener is set to.
func TestAcceptedConnectionsHoldFewUnsentBytes(t *testing.T) {
	l := testutil.Must(cli.ListenTCP("127.0.0.1:0"))(t)
	defer l.Close()
	client := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer client.Close()
	conn := testutil.Must(l.Accept())(t)
	defer conn.Close()
	raw := testutil.Must(conn.(*net.TCPConn).SyscallConn())(t)
	var got int
	var err error
	testutil.NoError(t, raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }))
	testutil.Holds(t, err == nil && got == 256<<10, "TCP_NOTSENT_LOWAT is %d, %v", got, err)
}

// All addresses are those of IPv4, too, however they are written.
func TestAllAddressesAreThoseOfIPv4Too(t *testing.T) {
	for _, all := range []string{":0", "[::]:0"} {
		l := testutil.Must(cli.ListenTCP(all))(t)
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c := testutil.Must(net.Dial("tcp", "127.0.0.1:"+port))(t)
		_ = c.Close()
	}
}
