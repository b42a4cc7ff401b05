package testutil

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// InNetwork runs do in a network namespace of its own, whose loopback is down, and returns what
// waits for its end. What do starts and opens is in that namespace, but for its goroutines. The
// test is skipped where none can be made, as without root.
func InNetwork(t testing.TB, do func()) (wait func()) {
	t.Helper()
	made, over := make(chan error), make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		made <- err
		if err == nil {
			do()
		}
	}()
	if err := <-made; err != nil {
		t.Skip("a network namespace cannot be made here: ", err)
	}
	return func() { <-over }
}
