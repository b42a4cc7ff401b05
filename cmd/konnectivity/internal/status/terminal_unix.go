//go:build unix

package status

import (
	"os"

	"golang.org/x/sys/unix"
)

// FollowEscapes does nothing: terminals interpret escape sequences by default.
func FollowEscapes(*os.File) {}

func sizeOf(f *os.File) Size {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return Size{}
	}
	return Size{int(size.Col), int(size.Row)}
}
