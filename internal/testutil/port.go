// Package testutil is what the tests of several packages share: waiting for
// something to happen, assertions, targets of a few lines and pairs of sockets, ports of their
// own, budgets of allocations, and upstream's flags.
//
// A port that a test found free by listening and closing may be taken by any process:
// packages are tested in parallel, and a listener or connection of another one may get
// it next. So these ports are held by a socket that is bound but does not listen. Linux
// refuses connections to such a port, and never picks it where a program asks for any
// port.
package testutil

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Refusing is an address of 127.0.0.1 that refuses every connection until the
// test ends. So does its port at every other address of this machine.
func Refusing(t testing.TB) string {
	t.Helper()
	s, port, err := bind()
	NoError(t, err)
	t.Cleanup(func() { _ = closeSocket(s) })
	return address(port)
}

// Reserved returns a port that until the test ends is used only by those that
// are given it: see Reserve.
func Reserved(t testing.TB) int {
	t.Helper()
	port, release, err := Reserve()
	NoError(t, err)
	t.Cleanup(release)
	return port
}

// ReservedAddress is 127.0.0.1 with a port of Reserved.
func ReservedAddress(t testing.TB) string {
	t.Helper()
	return address(Reserved(t))
}

// Reserve holds a TCP port until release is called, or this process ends. The
// port refuses connections until a program listens on it, at any local address and
// with SO_REUSEADDR, as Go's net package and all daemons do. The program may stop to
// listen, and listen again.
func Reserve() (port int, release func(), err error) {
	s, port, err := bind()
	if err != nil {
		return 0, nil, err
	}
	release = sync.OnceFunc(func() { _ = closeSocket(s) })
	// The socket was bound exclusively first, which proves that no other had the port.
	// From now on it is shared.
	if err := syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		release()
		return 0, nil, fmt.Errorf("share port %d: %w", port, err)
	}
	// Windows, or an imitation of Linux, cannot share: a port that is probably free
	// must do.
	if listens(port) != nil {
		release()
	}
	return port, release, nil
}

// listens returns nil if one more socket can listen on a port. No process is forked
// while it tries: a child that is yet to exec would have a copy of the socket and accept
// connections, and a test that waits for the port's owner would take the child for it.
func listens(port int) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = closeSocket(s) }()
	if err := syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	return syscall.Listen(s, 1)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// bind binds a socket to a free port at all addresses of the machine. Programs
// that the test starts do not inherit it.
func bind() (s socket, port int, err error) {
	s, port, err = bindTo(syscall.AF_INET6, &syscall.SockaddrInet6{})
	if err != nil { // a kernel without IPv6
		var second error
		if s, port, second = bindTo(syscall.AF_INET, &syscall.SockaddrInet4{}); second != nil {
			return s, 0, errors.Join(err, second)
		}
	}
	return s, port, nil
}

func bindTo(family int, at syscall.Sockaddr) (s socket, port int, err error) {
	s, err = newSocket(family)
	if err != nil {
		return s, 0, fmt.Errorf("make a socket: %w", err)
	}
	if family == syscall.AF_INET6 { // for IPv4, too, whatever the system's default
		err = syscall.SetsockoptInt(s, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = syscall.Bind(s, at)
	}
	if err == nil {
		at, err = syscall.Getsockname(s)
	}
	if err != nil {
		_ = closeSocket(s)
		return s, 0, fmt.Errorf("bind a socket: %w", err)
	}
	if six, ok := at.(*syscall.SockaddrInet6); ok {
		return s, six.Port, nil
	}
	return s, at.(*syscall.SockaddrInet4).Port, nil
}
