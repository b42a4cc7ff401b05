package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// followEscapes has the console follow the sequences that colors and --watch
// are made of, which those before Windows Terminal do only if asked.
func followEscapes(f *os.File) {
	console := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(console, &mode) == nil {
		_ = windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}

func terminalSize(f *os.File) screen {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return screen{}
	}
	return screen{int(info.Window.Right-info.Window.Left) + 1, int(info.Window.Bottom-info.Window.Top) + 1}
}
