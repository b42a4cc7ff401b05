package cli

import (
	"reflect"
	"strings"
	"unicode"
)

// Printable returns s with a question mark in place of each invisible character.
// Texts of peers could otherwise control the terminal that shows them, or change the
// direction of text.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// MakePrintable applies Printable to every string reachable from the pointer v,
// including keys of maps.
func MakePrintable(v any) { makePrintable(reflect.ValueOf(v)) }

func makePrintable(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			makePrintable(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				makePrintable(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			makePrintable(v.Index(i))
		}
	case reflect.Map:
		makeMapPrintable(v)
	case reflect.String:
		v.SetString(Printable(v.String()))
	}
}

// makeMapPrintable replaces entries, which cannot be changed in place.
func makeMapPrintable(m reflect.Value) {
	for _, key := range m.MapKeys() {
		k, v := reflect.New(key.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		k.Set(key)
		v.Set(m.MapIndex(key))
		makePrintable(k)
		makePrintable(v)
		m.SetMapIndex(key, reflect.Value{})
		m.SetMapIndex(k, v)
	}
}
