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

func sizeOf(f *os.File) Size {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return Size{}
	}
	return Size{int(info.Window.Right-info.Window.Left) + 1, int(info.Window.Bottom-info.Window.Top) + 1}
}
