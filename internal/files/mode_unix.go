//go:build unix

package files

import "syscall"

// NonBlock is a flag of os.OpenFile: do not wait for the process at a pipe's other end.
const NonBlock = syscall.O_NONBLOCK
