package status

import (
	"io"
	"os"
	"testing"

	"konnectivity/internal/testutil"
)

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
	at, _ := testutil.Terminal(t)
	for name, value := range map[string]string{"TERM": "xterm", "NO_COLOR": "1"} {
		t.Setenv(name, value)
		testutil.Equal(t, SizeOf(at), Size{100, 30}, "%s=%s", name, value)
	}
	testutil.Equal(t, SizeOf(null(t)), Size{}, "what is no terminal")
}

// A terminal has colours, where NO_COLOR does not say otherwise.
func TestColoursOfATerminal(t *testing.T) {
	at, _ := testutil.Terminal(t)
	t.Setenv("TERM", "xterm")
	for no, want := range map[string]string{"": PaintIf(true).Bold, "1": ""} {
		t.Setenv("NO_COLOR", no)
		got := render(at, func(p *printer) { _, _ = io.WriteString(p.out, p.paint.Bold) })
		testutil.Equal(t, string(got), want, "bold with NO_COLOR=%s", no)
	}
}
