//go:build !windows

package cli

import (
	"io"
	"os"
)

// asService returns false: a service of other systems is a process like any other.
func asService(func(stderr io.Writer, signals <-chan os.Signal) int) (status int, ok bool) {
	return 0, false
}
