//go:build !windows

package tunnel

import "syscall"

// errnoAliases is empty where the system itself has the numbers.
var errnoAliases map[syscall.Errno][]syscall.Errno
