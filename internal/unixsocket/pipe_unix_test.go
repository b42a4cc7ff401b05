//go:build unix

package unixsocket

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe where the folder should be is nobody's to wait for.
func TestAPipeForAFolder(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(pipe, "s"), Options{}); err == nil {
		_ = l.Close()
		t.Error("it listens in a pipe")
	}
}
