//go:build !linux

package cli

import "syscall"

// tune has nothing to set here.
func tune(_, _ string, _ syscall.RawConn) error { return nil }
