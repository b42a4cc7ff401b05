package race

import (
	"net/netip"

	"konnectivity/tunnel"
)

// Routed says whether this machine has a route to an address, and one of its own to send from. It
// sends nothing. Without a descriptor to ask with, it says that there is one.
func Routed(to netip.Addr) bool {
	_, err := tunnel.OwnAddr(to)
	return err == nil || tunnel.FailureOf(err) == tunnel.FailExhausted
}
