//go:build !windows

package testport

import "syscall"

type socket = int

// newSocket makes a TCP socket that no program inherits. (Not every system can
// say so as it makes one.)
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
