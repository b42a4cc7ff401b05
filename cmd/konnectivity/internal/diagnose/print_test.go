package diagnose

import (
	"strings"
	"testing"

	"konnectivity/cmd/konnectivity/internal/status"
)

// A step that took less than a microsecond still says how long it took: the
// resolution of a duration must not decide what is printed.
func TestPrintOfShortDuration(t *testing.T) {
	var out strings.Builder
	Print(&out, []Finding{{Step: "name", Result: OK, Milliseconds: milliseconds(0)}}, status.Paint{}, 80)
	if !strings.Contains(out.String(), "name (0.0 ms)") {
		t.Errorf("got %q", out.String())
	}
}
