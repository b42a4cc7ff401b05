//go:build !linux && !windows

package tunnel

import "syscall"

// hasInput reports whether a read would return at once.
func hasInput(fd uintptr) bool {
	var first [1]byte
	_, _, err := syscall.Recvfrom(int(fd), first[:], syscall.MSG_PEEK)
	return err != syscall.EAGAIN && err != syscall.EINTR
}
