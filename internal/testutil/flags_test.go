package testutil

import (
	"maps"
	"testing"
)

func TestFlagTable(t *testing.T) {
	const text = "# Flags\n\n## one\n\n| flag | default | meaning |\n|---|---|---|\n| `--a`, `-a` | `1` | see `--c` |\n| `--b`, `--b-2` (HTTP) | | b |\n\n" +
		"`--d` is prose\n\n## two\n\n| `--e` | | e |\n"
	for heading, want := range map[string]map[string]string{"one": {"a": "`1`", "b": "", "b-2": ""}, "two": {"e": ""}, "three": {}} {
		if got := flagTable(text, heading); !maps.Equal(got, want) {
			t.Errorf("%s: %q, want %q", heading, got, want)
		}
	}
}
