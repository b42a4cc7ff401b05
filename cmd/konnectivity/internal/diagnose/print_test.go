package diagnose

import (
	"strings"
	"testing"

	"konnectivity/cmd/konnectivity/internal/status"
)

// A step of less than a microsecond is printed with its duration too.
func TestPrintOfShortDuration(t *testing.T) {
	var out strings.Builder
	Print(&out, []Finding{{Step: "name", Result: OK, Milliseconds: milliseconds(0)}}, status.Paint{}, 80)
	if !strings.Contains(out.String(), "name (0.0 ms)") {
		t.Errorf("got %q", out.String())
	}
}
