package uplink

import "golang.org/x/sys/unix"

// unsent reports whether the peer's kernel lacks bytes of a socket.
func unsent(fd uintptr) bool {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	return err == nil && n > 0
}
