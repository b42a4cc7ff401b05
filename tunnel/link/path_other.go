//go:build !linux

package link

import "syscall"

func limitSegments(syscall.RawConn, int) {}

// unacknowledged is not known here.
func unacknowledged(syscall.RawConn) (segment int, yes bool) { return 0, false }
