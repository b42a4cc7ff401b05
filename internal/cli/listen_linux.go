package cli

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowat bounds the bytes that the kernel holds for a client before it sends them.
// The default is megabytes, of which a writer sees progress in thirds, so that a client
// that reads 200 KB/s seems to stall for many seconds. With this limit progress shows in
// halves of it, which distinguishes slow clients from stalled ones.
const notSentLowat = 256 << 10

// network returns tcp6 for all addresses, and tcp for others. For tcp, Go tries by 127.0.0.1
// whether one socket can serve both families, and serves IPv4 alone on a host without that
// address. For tcp6 it serves both, since tune has the socket take IPv4, too.
func network(address string) string {
	host, _, err := net.SplitHostPort(address)
	if ip, _ := netip.ParseAddr(host); err == nil && host == "" || ip == netip.IPv6Unspecified() {
		return "tcp6"
	}
	return "tcp"
}

// tune sets the option on a listener, from which accepted connections inherit it. Errors
// are ignored.
func tune(network, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		if network == "tcp6" {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		}
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
	})
}
