package tunnel

import (
	"syscall"
	"unsafe"
)

// Of poll(2); the numbers are the same on every architecture of Linux.
const (
	pollIn  = 0x1
	pollErr = 0x8
	pollHup = 0x10
)

// poll asks the kernel about fd, without waiting and without taking
// an error away from the next read. pollErr is a reset, or silence that
// TCP took for death; pollHup is that nothing can be sent or received any more.
// Neither need be asked for. ok is false if the kernel did not answer.
func poll(fd uintptr, events int16) (now int16, ok bool) {
	p := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: events}
	var wait syscall.Timespec
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&wait)), 0, 0, 0)
	return p.revents, errno == 0
}

// hasInput reports whether a read would return at once.
func hasInput(fd uintptr) bool {
	now, ok := poll(fd, pollIn)
	return now != 0 || !ok // or it would wait for ever
}
