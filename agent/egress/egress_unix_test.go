//go:build !windows

package egress

import (
	"fmt"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestOutOfDescriptors(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Skip(err)
	}
	low := old
	low.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Skip(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) }()
	d := New(Options{resolver: names{"a.example": {"127.0.0.1", "127.0.0.2"}}})
	_, err := dial(t, d, fmt.Sprintf("a.example:%d", port))
	wantFailure(t, err, tunnel.FailExhausted)
}

func TestKeepAliveIsOn(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	c := testutil.Must(dial(t, New(Options{}), fmt.Sprintf("127.0.0.1:%d", port)))(t)
	defer c.Close()
	raw := testutil.Must(c.(syscall.Conn).SyscallConn())(t)
	_ = raw.Control(func(fd uintptr) {
		on, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		testutil.Holds(t, err == nil && on != 0, "keepalive is %d, %v", on, err)
	})
}
