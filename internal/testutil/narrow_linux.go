package testutil

import (
	"cmp"
	"context"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Narrow returns a listener on a port of 127.0.0.1 that receives no segment of more than 1,300
// bytes, with TCP's header, and sends no ICMP. Larger ones are lost before they count as
// received, as on a path with a smaller MTU whose ICMP messages are dropped.
func Narrow(t testing.TB) net.Listener {
	t.Helper()
	narrow := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return NarrowSocket(raw) }}
	l := Must(narrow.Listen(context.Background(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// NarrowSocket has a TCP socket, and what it accepts, receive as those of Narrow do.
func NarrowSocket(raw syscall.RawConn) (err error) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, Jf: 1, K: 1300},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 18},
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
	return cmp.Or(controlErr, err)
}
