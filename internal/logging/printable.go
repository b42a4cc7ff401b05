package logging

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// escapeHidden returns a JSON text with invisible characters escaped, which could
// control the terminal that shows it. Its meaning stays the same.
func escapeHidden(text []byte) []byte {
	if !bytes.ContainsFunc(text, hidden) {
		return text
	}
	out := make([]byte, 0, len(text)+64)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case !hidden(r):
			out = append(out, text[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out
}

// hidden reports whether r is an invisible character that encoding/json does not
// escape. It escapes those below the space, except for line ends between values.
func hidden(r rune) bool { return r > '~' && !unicode.IsPrint(r) }
