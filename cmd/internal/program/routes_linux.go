package program

import (
	"cmp"
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/wait"
)

// settle is how long after a change others are waited for: one comes with more, an address that
// is replaced is gone for a moment, and a node may have hundreds of new routes in a second.
const settle = 300 * time.Millisecond

// followRoutes calls changed once addresses or routes of this machine have changed, at most every
// settle, until ctx ends. Where the system does not tell, it never does.
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
	raw, err := news.SyscallConn()
	for err == nil && awaitNews(raw) == nil && wait.For(ctx, settle) {
		changed()
	}
}

// awaitNews waits for a message, and takes all that there are, whatever they say.
func awaitNews(raw syscall.RawConn) (err error) {
	message := make([]byte, 1)
	closed := raw.Read(func(fd uintptr) bool {
		for told := false; ; told = true {
			switch _, err = unix.Read(int(fd), message); err {
			case nil, unix.ENOBUFS: // some were lost
			case unix.EAGAIN:
				err = nil
				return told
			default:
				return true
			}
		}
	})
	return cmp.Or(closed, err)
}
