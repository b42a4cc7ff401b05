//go:build !linux

package link

import "net"

// tune has nothing to set where TCP_NOTSENT_LOWAT is not known.
func tune(net.Conn) {}
