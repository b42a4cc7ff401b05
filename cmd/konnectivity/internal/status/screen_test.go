package status

import (
	"bytes"
	"os"
	"testing"
	"time"

	"konnectivity/internal/testutil"
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
		testutil.Equal(t, Wrap(c.text, c.columns, 2, "  "), c.want, "%q in %d", c.text, c.columns)
	}
}

func TestSizeFromEnvironment(t *testing.T) {
	t.Setenv("COLUMNS", "")
	t.Setenv("LINES", "x")
	testutil.Equal(t, SizeOf(new(bytes.Buffer)), Size{}, "a pipe")
	t.Setenv("COLUMNS", "90")
	t.Setenv("LINES", "24")
	testutil.Equal(t, SizeOf(new(bytes.Buffer)), Size{90, 24}, "by the environment")
	t.Setenv("COLUMNS", "3")
	testutil.Equal(t, SizeOf(os.Stdout).Columns, minColumns, "columns")
}

func TestFigures(t *testing.T) {
	for got, want := range map[string]string{
		Bytes(0): "0 B", Bytes(999): "999 B", Bytes(1000): "1.0 kB", Bytes(123456): "123 kB", Bytes(5e12): "5.0 TB", Bytes(5e15): "5000 TB",
		Span(0): "0.0 s", Span(90 * time.Second): "90 s", Span(30 * time.Minute): "30 min", Span(72 * time.Hour): "3 d", Span(-time.Hour): "0.0 s",
		Duration(0): "-", Duration(0.00123): "1.23 ms", Duration(2.5): "2.5 s", Duration(.9994): "999 ms", Duration(.9996): "1.0 s", Cut("agent-1", 4): "age…", Plural(1, "agent"): "1 agent", Plural(0, "agent"): "0 agents",
	} {
		testutil.Equal(t, got, want, "a figure")
	}
}

// Colours take no columns: lines break where those of the same text without colours do.
func TestColoursTakeNoColumns(t *testing.T) {
	c, text := PaintIf(true), ""
	for range 20 {
		text += c.Bold + "word" + c.Off + " " + c.Green + "ready" + c.Off + ", "
	}
	plain := uncoloured.Replace(text)
	testutil.Equal(t, uncoloured.Replace(Wrap(text, 40, 2, "  ")), Wrap(plain, 40, 2, "  "), "without colours")
}
