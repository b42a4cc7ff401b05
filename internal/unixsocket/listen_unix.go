//go:build unix && !linux

package unixsocket

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxPath is what BSD kernels take (unix(4), sun_path without its NUL).
const maxPath = 103

// Guarded says that the file's owner and mode decide who may connect.
const Guarded = true

// umask is held by who has changed that of the process, until it is as it was.
var umask sync.Mutex

// listenPrivately keeps others out by umask, since these systems know no mode
// of a socket before bind. Files that the process makes at that moment are kept
// from others as well, which does no harm.
func listenPrivately(path string) (net.Listener, error) {
	umask.Lock()
	defer umask.Unlock()
	defer syscall.Umask(syscall.Umask(^privateMode & 0o777))
	return net.Listen("unix", path)
}

// chmod is for the file at path itself. Whoever may write to the folder can put a
// symbolic link there, and what it leads to is not to change.
func chmod(path string, mode os.FileMode) error {
	if err := unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}
