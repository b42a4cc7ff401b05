//go:build !windows

package resources

import (
	"syscall"
	"time"
)

// CPUTime returns the processor time that all threads of this process have used
// so far, in user and kernel mode.
func CPUTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for bad arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
