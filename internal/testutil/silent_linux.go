package testutil

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Silent returns a listener whose queue is full. Dials get no answer until a connection
// is accepted, as behind a firewall that drops packets. host is an IPv4 address; port
// may be reserved, or 0 for any.
func Silent(t testing.TB, host string, port int) net.Listener {
	t.Helper()
	s := Must(newSocket(syscall.AF_INET))(t)
	file := os.NewFile(uintptr(s), "silent")
	defer file.Close()
	NoError(t, syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	NoError(t, syscall.Bind(s, &syscall.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(host).As4()}))
	NoError(t, syscall.Listen(s, 0))
	l := Must(net.FileListener(file))(t)
	t.Cleanup(func() { _ = l.Close() })
	fill(t, s, l.Addr().String())
	return l
}

// fill makes connections until the queue of s, which listens at address, is
// full: one of length 0 still takes one or two.
func fill(t testing.TB, s socket, address string) {
	t.Helper()
	for range 8 {
		// For a listener this has the number of connections in its queue, and
		// the queue's length.
		if info, err := unix.GetsockoptTCPInfo(s, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Unacked > info.Sacked {
			return
		}
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return // full
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("this kernel's accept queue cannot be filled")
}
