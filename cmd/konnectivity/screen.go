package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// screen is how much room there is; 0 is as much as one likes, as in a pipe.
type screen struct{ columns, rows int }

// screenOf asks the terminal that out leads to. COLUMNS and LINES override it,
// as POSIX has it (Base Definitions §8.3).
func screenOf(out io.Writer) screen {
	var s screen
	if f, ok := out.(*os.File); ok && isTerminal(out) {
		s = terminalSize(f)
	}
	for name, to := range map[string]*int{"COLUMNS": &s.columns, "LINES": &s.rows} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			*to = n
		}
	}
	if s.columns > 0 && s.columns < minColumns {
		s.columns = minColumns
	}
	return s
}

// minColumns is what no table can do without.
const minColumns = 40

// wrap breaks text between words so that it fits into columns, the first line
// behind as much as first columns, the others behind an indent. A word that is
// longer stays whole: it may be copied.
func wrap(text string, columns, first int, indent string) string {
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
