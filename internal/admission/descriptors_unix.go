//go:build unix

package admission

import (
	"math"
	"syscall"
)

// Descriptors returns how many descriptors the process may have open, 0 for no
// limit. The Go runtime has raised the soft limit to the hard one by then.
func Descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || uint64(limit.Cur) > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur)
}
