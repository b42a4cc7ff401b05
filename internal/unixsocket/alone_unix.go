//go:build unix

package unixsocket

import (
	"os"
	"syscall"
	"time"
)

const (
	// aloneTime bounds the wait for others, who hold the lock for a moment, or for as
	// long as they mean harm; aloneLook is how often it is tried.
	aloneTime = 2 * time.Second
	aloneLook = 2 * time.Millisecond
)

// alone keeps other processes that do the same from the sockets in a folder, until
// they are let in: between a look at what is there and its removal, another would put
// its own there, and lose it. Where the folder cannot be locked, or not in time, all
// goes on without.
func alone(dir string) (letIn func()) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0) // to open a pipe would wait for its writer
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(aloneTime); time.Now().Before(end); time.Sleep(aloneLook) {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			break
		}
	}
	return func() { _ = f.Close() } // which gives the lock back
}
