//go:build !linux

package front

import (
	"errors"
	"net"
	"net/netip"
)

// Redirects says whether this system tells where a redirected connection was to go.
const Redirects = false

func original(net.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.ErrUnsupported
}
