//go:build !windows && (!linux || race || msan || asan)

package tunnel

import "syscall"

func read(fd int, p []byte) (int, error)  { return syscall.Read(fd, p) }
func write(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }
