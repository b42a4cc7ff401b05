package unixsocket

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxPath is what the kernel takes (unix(7), sun_path without its NUL).
const maxPath = 107

// Guarded reports that the file's owner and mode restrict connections.
const Guarded = true

// listenPrivately sets the mode on the socket before bind, and the kernel gives
// what umask leaves of it to the file. (umask itself is the whole process's.)
func listenPrivately(path string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), privateMode) }); failed != nil {
			return failed
		}
		return err
	}}
	return config.Listen(context.Background(), "unix", path)
}

// chmod sets the mode of the socket at path, and of no file behind a symbolic link,
// which everyone with write access to the folder could put there. Kernels before 6.6
// change a mode without following links only by way of /proc.
func chmod(path string, mode os.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if file.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no longer the socket that was made there", path)
	}
	if unix.Fchmodat(fd, "", uint32(mode), unix.AT_EMPTY_PATH) == nil {
		return nil
	}
	return os.Chmod(fmt.Sprint("/proc/self/fd/", fd), mode)
}
