//go:build unix

package unixsocket

import (
	"os"
	"syscall"
	"time"
)

const (
	// lockTimeout bounds the wait for a lock that others hold for a moment, unless
	// they mean harm; lockPoll is the pause between two attempts.
	lockTimeout = 2 * time.Second
	lockPoll    = 2 * time.Millisecond
)

// lock locks a folder against other processes that call lock: one that put its
// socket there between a check of the file and its removal would lose it. A folder
// that cannot be locked in time is used without a lock.
func lock(dir string) (unlock func()) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0) // to open a pipe would wait for its writer
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(lockTimeout); time.Now().Before(end); time.Sleep(lockPoll) {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			break
		}
	}
	return func() { _ = f.Close() } // which gives the lock back
}
