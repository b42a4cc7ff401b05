package status

import (
	"bytes"
	"os"
	"testing"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"one two three", 0, "one two three"},
		{"one two three", 20, "one two three"},
		{"one two three", 9, "one two\n  three"}, // two are taken
		{"a-word-that-is-longer-than-that b", 10, "a-word-that-is-longer-than-that\n  b"},
		{"", 10, ""},
	} {
		if got := Wrap(c.text, c.columns, 2, "  "); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.columns, got, c.want)
		}
	}
}

func TestSizeFromEnvironment(t *testing.T) {
	t.Setenv("COLUMNS", "")
	t.Setenv("LINES", "x")
	if s := SizeOf(new(bytes.Buffer)); s != (Size{}) {
		t.Errorf("a pipe has %+v", s)
	}
	t.Setenv("COLUMNS", "90")
	t.Setenv("LINES", "24")
	if s := SizeOf(new(bytes.Buffer)); s != (Size{90, 24}) {
		t.Errorf("%+v", s)
	}
	t.Setenv("COLUMNS", "3")
	if s := SizeOf(os.Stdout); s.Columns != minColumns {
		t.Errorf("%+v", s)
	}
}
