package status

import (
	"testing"
	"time"
)

func TestFigures(t *testing.T) {
	for got, want := range map[string]string{
		Bytes(0): "0 B", Bytes(999): "999 B", Bytes(1000): "1.0 kB", Bytes(123456): "123 kB", Bytes(5e12): "5.0 TB", Bytes(5e15): "5000 TB",
		Span(0): "0.0 s", Span(90 * time.Second): "90 s", Span(30 * time.Minute): "30 min", Span(72 * time.Hour): "3 d", Span(-time.Hour): "0.0 s",
		Duration(0): "-", Duration(0.00123): "1.23 ms", Duration(2.5): "2.5 s", Duration(.9994): "999 ms", Duration(.9996): "1.0 s", Cut("agent-1", 4): "age…", Plural(1, "agent"): "1 agent", Plural(0, "agent"): "0 agents",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
