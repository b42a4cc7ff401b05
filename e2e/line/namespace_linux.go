package line

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. It lives as long as it is open, or something
// in it is.
type Namespace struct{ file *os.File }

// newNamespace makes one with nothing but loopback in it.
func newNamespace() (*Namespace, error) {
	n := &Namespace{}
	return n, onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		var err error
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		// Its neighbour discovery would take part in the seeded loss.
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0o644)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644)
		return bringUp("lo")
	})
}

// Inherited is the namespace that a parent process passed as an open file.
func Inherited(fd uintptr) *Namespace { return &Namespace{file: os.NewFile(fd, "namespace")} }

// File is the namespace to be passed to a child process.
func (n *Namespace) File() *os.File { return n.file }

// Do runs fn in the namespace: sockets that it opens, and processes that it
// starts, belong there for good. It must do so on its own goroutine.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return fn()
	})
}

// Close lets the namespace go.
func (n *Namespace) Close() error { return n.file.Close() }

// onThread runs fn on a thread of its own, which ends with it, so that no other
// goroutine finds itself in a foreign namespace.
func onThread(fn func() error) error {
	err := errors.New("left without an answer") // runtime.Goexit in fn
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		err = fn()
	}()
	<-done
	return err
}
