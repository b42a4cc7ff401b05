//go:build !linux

package link

import "syscall"

func limitSegments(syscall.RawConn, int) {}

// segmentsOf knows nothing here.
func segmentsOf(syscall.RawConn) segments { return segments{} }
