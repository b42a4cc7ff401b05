//go:build !linux

package transparent

import (
	"errors"
	"net"
	"net/netip"
)

// Supported says whether this system tells where a redirected connection was to
// go.
const Supported = false

func original(net.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.ErrUnsupported
}
