package front

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Redirects says whether this system tells where a redirected connection was to go.
const Redirects = true

// original returns where a connection was to go before netfilter redirected it.
// Of one that was not redirected, that is its local address, or an error if the
// kernel keeps no track of it.
func original(conn net.Conn) (to netip.AddrPort, err error) {
	socket, ok := conn.(*net.TCPConn)
	if !ok {
		return to, fmt.Errorf("%T is no TCP connection", conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return to, err
	}
	ask := original6
	if local := localAddress(conn).Addr(); local.Is4() {
		ask = original4
	}
	if failed := raw.Control(func(fd uintptr) { to, err = ask(int(fd)) }); failed != nil {
		return to, failed
	}
	return to, err
}

// original4 has the kernel write a struct sockaddr_in (family, port, address,
// padding, 16 bytes in all) to where x/sys has room for it.
func original4(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, sockoptError(err)
	}
	port := binary.BigEndian.Uint16(got.Multiaddr[2:])
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(got.Multiaddr[4:8])), port), nil
}

// original6 is the same for a struct sockaddr_in6. IP6T_SO_ORIGINAL_DST has the
// same number.
func original6(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, sockoptError(err)
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, got.Addr.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(got.Addr.Addr), port), nil
}

func sockoptError(err error) error {
	return fmt.Errorf("the kernel does not tell where it was to go: %w", os.NewSyscallError("getsockopt", err))
}
