package admin

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is by a clock that goes on while the machine is suspended, and is never set.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // 0 where there is none: as if the clock had been set
	return time.Duration(t.Nano())
}
