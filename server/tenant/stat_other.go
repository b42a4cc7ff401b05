//go:build !linux

package tenant

import "os"

// look is what the system says of a file, or of a folder's list of files, that tells
// whether it has changed.
type look struct{ info os.FileInfo }

func lookOf(info os.FileInfo) look { return look{info} }

// same says whether nothing has changed between two looks.
func (l look) same(o look) bool {
	a, b := l.info, o.info
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode() && l.sameFile(o)
}

// sameFile says whether they were at one file, whatever it holds.
func (l look) sameFile(o look) bool { return os.SameFile(l.info, o.info) }

// still reports whether the file at path, links followed, is unchanged.
func (l look) still(path string) bool {
	now, err := os.Stat(path)
	return err == nil && l.same(look{now})
}
