package unixsocket

import (
	"net"
	"strconv"
	"syscall"

	"konnectivity/tunnel"
)

// PeerOf returns the identity of the process at the other end of a connection that was
// accepted on a unix socket; "" for any other.
func PeerOf(c net.Conn) tunnel.Identity {
	at, ok := c.LocalAddr().(*net.UnixAddr)
	if !ok {
		return ""
	}
	names := []string{"socket:" + at.Name}
	if raw, ok := tunnel.Under[syscall.Conn](c); ok {
		if uid, ok := PeerUID(raw); ok {
			names = append(names, "uid:"+strconv.Itoa(uid))
		}
	}
	return tunnel.NewIdentity(names...)
}
