package testutil

import "syscall"

type socket = syscall.Handle

// newSocket makes a TCP socket. Programs started by Go inherit only what they
// are given.
func newSocket(family int) (socket, error) {
	return syscall.Socket(family, syscall.SOCK_STREAM, 0)
}

func closeSocket(s socket) error { return syscall.Closesocket(s) }
