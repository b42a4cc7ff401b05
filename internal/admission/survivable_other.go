//go:build !linux

package admission

import "syscall"

var survivableHere []syscall.Errno
