package unixsocket

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerUID returns the user that the process at the other end had as it connected (unix(7),
// SO_PEERCRED); ok is false where the system does not tell.
func PeerUID(c syscall.Conn) (uid int, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if failed != nil || err != nil {
		return 0, false
	}
	return int(peer.Uid), true
}
