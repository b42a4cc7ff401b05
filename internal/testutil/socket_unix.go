//go:build !windows

package testutil

import "syscall"

type socket = int

// newSocket creates a TCP socket that no program inherits. (Not every system
// can do both in one call.)
func newSocket(family int) (socket, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(s)
	}
	return s, err
}

func closeSocket(s socket) error { return syscall.Close(s) }
