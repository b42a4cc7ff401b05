//go:build !windows

package suite

import "syscall"

// Freeze stops a process as if its machine hung, and Thaw continues it.
const (
	Freeze = syscall.SIGSTOP
	Thaw   = syscall.SIGCONT
)
