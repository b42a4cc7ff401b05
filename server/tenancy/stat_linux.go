package tenancy

import (
	"os"
	"syscall"
	"time"
)

// noted is when the system noted the last change of a file, or of what it says of
// it; zero: it does not tell.
func noted(info os.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}

// looksAs says whether a file, links followed, looks as it did. os.Stat would
// allocate a result each time, which for thousands of files every two seconds is
// most of what an idle server leaves to the collector.
func looksAs(was os.FileInfo, path string) bool {
	then, ok := was.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	var now syscall.Stat_t
	err := syscall.Stat(path, &now)
	for err == syscall.EINTR {
		err = syscall.Stat(path, &now)
	}
	return err == nil && now.Dev == then.Dev && now.Ino == then.Ino && now.Mode == then.Mode && now.Size == then.Size && now.Mtim == then.Mtim && now.Ctim == then.Ctim
}
