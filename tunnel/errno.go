package tunnel

import (
	"errors"
	"syscall"
)

// IsErrno says whether err is one of errnos, as errors.Is does; and on Windows
// also whether it is what Winsock has in their place. Package syscall has the
// names of Unix there, too, but for numbers that no call returns.
func IsErrno(err error, errnos ...syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
		for _, alias := range errnoAliases[errno] {
			if errors.Is(err, alias) {
				return true
			}
		}
	}
	return false
}

// setErrno is the As method of an error that counts as errno; 0: as none.
func setErrno(target any, errno syscall.Errno) bool {
	to, ok := target.(*syscall.Errno)
	if !ok || errno == 0 {
		return false
	}
	*to = errno
	return true
}
