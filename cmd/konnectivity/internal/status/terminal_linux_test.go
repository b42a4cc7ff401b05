package status

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// terminal is one of 100 columns and 30 rows.
func terminal(t *testing.T) *os.File {
	t.Helper()
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Skip(err) // not every container has terminals
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	master := open("/dev/ptmx")
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 100, Row: 30})
	}
	testutil.NoError(t, err)
	return open(fmt.Sprint("/dev/pts/", number))
}

// null is a device that is no terminal.
func null(t *testing.T) *os.File {
	t.Helper()
	f := testutil.Must(os.OpenFile(os.DevNull, os.O_WRONLY, 0))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A terminal without colour has a size, too.
func TestSizeOfATerminal(t *testing.T) {
	t.Setenv("COLUMNS", "")
	t.Setenv("LINES", "")
	at := terminal(t)
	for name, value := range map[string]string{"TERM": "xterm", "NO_COLOR": "1"} {
		t.Setenv(name, value)
		if s := SizeOf(at); s != (Size{100, 30}) {
			t.Errorf("%s=%s: %+v", name, value, s)
		}
	}
	if s := SizeOf(null(t)); s != (Size{}) {
		t.Errorf("what is no terminal has %+v", s)
	}
}
