//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// followEscapes has nothing to do: terminals do.
func followEscapes(*os.File) {}

func terminalSize(f *os.File) screen {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return screen{}
	}
	return screen{int(size.Col), int(size.Row)}
}
