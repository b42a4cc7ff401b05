package program

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// followRoutes calls changed whenever an address or a route of this machine has changed, until
// ctx ends. Where the system does not tell, it never does.
func followRoutes(ctx context.Context, changed func()) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return
	}
	news := os.NewFile(uintptr(fd), "netlink")
	defer news.Close()
	defer context.AfterFunc(ctx, func() { _ = news.Close() })()
	const groups = unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}) != nil {
		return
	}
	for message := make([]byte, 1<<10); ; changed() { // whatever the message says
		if _, err := news.Read(message); err != nil && !errors.Is(err, unix.ENOBUFS) { // some were lost
			return
		}
	}
}
