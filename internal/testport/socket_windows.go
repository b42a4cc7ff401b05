package testport

import "syscall"

type socket = syscall.Handle

// newSocket makes a TCP socket. Go's programs inherit only what they are given.
func newSocket(family int) (socket, error) {
	return syscall.Socket(family, syscall.SOCK_STREAM, 0)
}

func closeSocket(s socket) error { return syscall.Closesocket(s) }
