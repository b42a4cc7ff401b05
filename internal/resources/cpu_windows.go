package resources

import (
	"time"

	"golang.org/x/sys/windows"
)

// CPUTime returns the processor time that all threads of this process have used
// so far, in user and kernel mode.
func CPUTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	_ = windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user) // fails only for bad arguments
	return span(kernel) + span(user)
}

// span converts a Filetime that holds a length of time, in units of 100 ns.
func span(t windows.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
