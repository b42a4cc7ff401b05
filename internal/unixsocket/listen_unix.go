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

// Guarded reports that the file's owner and mode restrict connections.
const Guarded = true

// umask is held while the process's umask is changed.
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

// chmod sets the mode of the file at path, and of no file behind a symbolic link,
// which everyone with write access to the folder could put there.
func chmod(path string, mode os.FileMode) error {
	if err := unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}
