package status

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Size is how much room there is; 0 means any amount, as in a pipe.
type Size struct{ Columns, Rows int }

// SizeOf asks the terminal that out leads to. COLUMNS and LINES override it,
// as POSIX has it (Base Definitions §8.3).
func SizeOf(out io.Writer) Size {
	var s Size
	if f, ok := out.(*os.File); ok { // also one without colour
		s = sizeOf(f)
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

// minColumns is what no table can do without.
const minColumns = 40

// Wrap breaks text between words so that it fits into columns, the first line
// behind as much as first columns, the others behind an indent. A word that is
// longer stays whole: it may be copied.
func Wrap(text string, columns, first int, indent string) string {
	if columns == 0 {
		return text
	}
	var b strings.Builder
	at := first
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
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

// IsTerminal says whether a person watches. NO_COLOR (no-color.org) says that
// colour is not wanted.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
