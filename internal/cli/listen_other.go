//go:build !linux

package cli

import "syscall"

// network is the one to listen on.
func network(string) string { return "tcp" }

// tune has nothing to set here.
func tune(_, _ string, _ syscall.RawConn) error { return nil }
