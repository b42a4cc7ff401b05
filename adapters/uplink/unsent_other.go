//go:build !linux

package uplink

// unsent would report whether the peer's kernel lacks bytes of a socket.
func unsent(uintptr) bool { return false }
