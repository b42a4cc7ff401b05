package status

import (
	"os"

	"golang.org/x/sys/windows"
)

// FollowEscapes makes the console interpret the escape sequences of colours and --watch,
// which consoles older than Windows Terminal do not by default.
func FollowEscapes(f *os.File) {
	console := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(console, &mode) == nil {
		_ = windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}
