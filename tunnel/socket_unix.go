//go:build !windows

package tunnel

import (
	"io"
	"syscall"
)

// RawConn is the socket under c for RawRead and RawWrite; an error where there
// is none, or the system has no such calls.
func RawConn(c syscall.Conn) (syscall.RawConn, error) { return c.SyscallConn() }

// RawRead is one read(2) on a non-blocking descriptor, for use inside
// syscall.RawConn.Read: io.EOF at the end, syscall.EAGAIN where there is
// nothing now.
func RawRead(fd uintptr, p []byte) (int, error) {
	for {
		n, err := read(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// RawWrite is one write(2) on a non-blocking descriptor, for use inside
// syscall.RawConn.Write. It may write less than p.
func RawWrite(fd uintptr, p []byte) (int, error) {
	for {
		n, err := write(int(fd), p)
		if err == syscall.EINTR {
			continue
		}
		return max(n, 0), err
	}
}

// AwaitInput returns once a read of c would return at once: with bytes, an end or a failure.
// It takes no byte, and needs less stack than a goroutine begins with. Another goroutine may
// close c meanwhile; none may read it.
func AwaitInput(c syscall.RawConn) { _ = c.Read(hasInput) }
