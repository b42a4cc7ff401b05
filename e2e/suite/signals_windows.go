package suite

import "syscall"

// There are no such signals here: sending one fails.
const (
	Freeze = syscall.Signal(19)
	Thaw   = syscall.Signal(18)
)
