// Package printable keeps names and texts of peers from controlling the
// terminal they are shown on, by control characters or by characters that
// change the direction of text or have no width.
//
// The operator's tool calls it for all that it prints of others, and the log
// for every line.
package printable

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns s with a question mark for each invisible character.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// JSON returns a JSON text with such characters escaped. Its meaning stays the
// same.
func JSON(text []byte) []byte {
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

// hidden reports whether r is an invisible character that encoding/json leaves
// in a string. Of those below the space it leaves none; line ends occur only
// between values.
func hidden(r rune) bool { return r > '~' && !unicode.IsPrint(r) }

// All makes every string reachable from the pointer v printable, keys of maps
// included.
func All(v any) { clean(reflect.ValueOf(v)) }

func clean(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			clean(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				clean(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			clean(v.Index(i))
		}
	case reflect.Map:
		cleanMap(v)
	case reflect.String:
		v.SetString(Text(v.String()))
	}
}

// cleanMap replaces entries, which cannot be changed where they are.
func cleanMap(m reflect.Value) {
	for _, key := range m.MapKeys() {
		k, v := reflect.New(key.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		k.Set(key)
		v.Set(m.MapIndex(key))
		clean(k)
		clean(v)
		m.SetMapIndex(key, reflect.Value{})
		m.SetMapIndex(k, v)
	}
}
