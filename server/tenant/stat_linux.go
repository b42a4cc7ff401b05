package tenant

import (
	"os"
	"syscall"
)

// look is what the system says of a file, or of a folder's list of files, that tells
// whether it has changed. Tools can keep its size and the time that they write it, but
// not the system's own note, which is ctim. An os.FileInfo takes four times as much.
type look struct {
	dev, ino   uint64
	size       int64
	mtim, ctim syscall.Timespec
	mode       uint32
}

func lookOf(info os.FileInfo) look { return lookOfStat(info.Sys().(*syscall.Stat_t)) }

func lookOfStat(s *syscall.Stat_t) look {
	return look{dev: uint64(s.Dev), ino: s.Ino, size: s.Size, mtim: s.Mtim, ctim: s.Ctim, mode: s.Mode}
}

// same says whether nothing has changed between two looks.
func (l look) same(o look) bool { return l == o }

// sameFile says whether they were at one file, whatever it holds.
func (l look) sameFile(o look) bool { return l.dev == o.dev && l.ino == o.ino }

// still reports whether the file at path, links followed, is unchanged. os.Stat would
// allocate a result each time, which for thousands of files every two seconds is most
// of what an idle server leaves to the collector.
func (l look) still(path string) bool {
	var now syscall.Stat_t
	err := syscall.Stat(path, &now)
	for err == syscall.EINTR {
		err = syscall.Stat(path, &now)
	}
	return err == nil && l.same(lookOfStat(&now))
}
