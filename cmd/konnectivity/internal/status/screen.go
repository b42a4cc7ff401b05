package status

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Size is that of a terminal; 0 is unlimited, as for a pipe.
type Size struct{ Columns, Rows int }

// SizeOf returns the size of the terminal of out. COLUMNS and LINES override it (POSIX,
// Base Definitions §8.3).
func SizeOf(out io.Writer) Size {
	var s Size
	if f, ok := out.(*os.File); ok { // terminals without colours have a size too
		s.Columns, s.Rows, _ = term.GetSize(int(f.Fd()))
	}
	for name, to := range map[string]*int{"COLUMNS": &s.Columns, "LINES": &s.Rows} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			*to = n
		}
	}
	if s.Columns > 0 && s.Columns < minColumns {
		s.Columns = minColumns
	}
	return s
}

// minColumns is the least width of a table.
const minColumns = 40

// uncoloured removes the escape sequences of colours, which take no column.
var uncoloured = func(p Paint) *strings.Replacer {
	return strings.NewReplacer(p.Green, "", p.Red, "", p.Yellow, "", p.Bold, "", p.Dim, "", p.Off, "")
}(PaintIf(true))

// Wrap breaks text between words so that lines fit into columns. The first line starts
// at column first, the others after indent. Longer words stay whole, to be copied.
func Wrap(text string, columns, first int, indent string) string {
	if columns == 0 {
		return text
	}
	var b strings.Builder
	at := first
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(uncoloured.Replace(word))
		switch {
		case i == 0:
		case at+1+n > columns:
			b.WriteString("\n" + indent)
			at = utf8.RuneCountInString(indent)
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// IsTerminal reports whether out is a terminal with colours, which NO_COLOR
// (no-color.org) turns off.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Paint has the escape sequences of colours; the zero value has none.
type Paint struct{ Green, Red, Yellow, Bold, Dim, Off string }

// PaintIf returns the colours if on is true.
func PaintIf(on bool) Paint {
	if !on {
		return Paint{}
	}
	return Paint{"\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"}
}
